"""The one command. Each room's commands live in that room; they are looked up by module name only when asked for.

Results go to stdout, complaints to stderr. Exit status: 0 done, 1 a check failed, 2 wrong use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from typer.exceptions import TyperException

from gateway.errors import ConfigError, GatewayError

# command -> (module whose `app` runs it, one line of help)
_ROOMS = {
    "replica": ("replicas.cli", "Run one of our own engine replicas."),
    "model": ("replicas.model_cli", "Fetch or list models."),
    "mock-engine": ("replicas.mock.cli", "Run fake engines with real caches: for tests and fleets."),
    "events": ("events.cli", "Decode, follow and judge streams of KV-cache events."),
    "relay": ("events.relay.cli", "Pass on what replicas announce, to all gateways of a fleet, by Redis."),
    "doctor": ("gateway.doctor.cli", "Examine every replica; say what is wrong and how to mend it."),
    "explain": ("gateway.explain.cli", "Say where a request would go and why, without sending it."),
    "index": ("gateway.index_cli", "Show what a running gateway believes its replicas have cached."),
    "top": ("gateway.top.cli", "Show the fleet of a running gateway, live."),
    "simulate": ("simulations.cli", "Replay a trace through the routing policies."),
}
_EXTRAS = {"torch": "replica", "safetensors": "replica", "gguf": "replica", "matplotlib": "simulate"}

app = typer.Typer(
    name="trunkline",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A KV-cache-aware, OpenAI-compatible gateway for fleets of LLM engine replicas.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `trunkline`; returns the exit status."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        if args and args[0] in _ROOMS:
            return _run(_room(args[0]), args[1:], f"trunkline {args[0]}")
        return _run(app, args, "trunkline")
    except GatewayError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        hint = f"install trunkline with the extra [{extra}], as in `pip install '.[{extra}]'`"
        typer.echo(f"error: `trunkline {' '.join(args[:1])}` needs the package {error.name!r}: {hint}", err=True)
        return 2


def _room(command: str) -> typer.Typer:
    room: typer.Typer = importlib.import_module(_ROOMS[command][0]).app
    return room


def _run(command: typer.Typer, args: list[str], name: str) -> int:
    try:
        status = command(args, prog_name=name, standalone_mode=False)
    except TyperException as error:  # wrong use: an unknown option, a value of the wrong type
        typer.echo(f"error: {error.format_message()} (see `{name} --help`)", err=True)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return status if isinstance(status, int) else 0


@app.command(
    "serve",
    epilog="Example: trunkline serve --replica http://10.0.0.1:8000,events=tcp://10.0.0.1:5557 --tokenizer smollm2",
)
def serve_command(
    config: Annotated[Path | None, typer.Option(help="YAML file; options given here win over it.")] = None,
    replica: Annotated[
        list[str] | None, typer.Option(help="URL[,name=..,events=..,replay=..,dialect=..,ranks=..]; may be repeated.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Hugging Face folder of the model, or 'smollm2'.")] = None,
    policy: Annotated[str | None, typer.Option(help="How a replica is chosen: cost, least_loaded, ...")] = None,
    host: Annotated[str | None, typer.Option(help="Data plane address.")] = None,
    port: Annotated[int | None, typer.Option(help="Data plane port; 0 takes a free one.")] = None,
    control_host: Annotated[str | None, typer.Option(help="Control plane address.")] = None,
    control_port: Annotated[int | None, typer.Option(help="Control plane port; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve clients on the one port.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM file: serve clients by TLS with this certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of its key, where that is not in the same file.")] = None,
    api_keys_file: Annotated[str | None, typer.Option(help="File of name:sha256-hex lines; without it no key is asked.")] = None,
    record: Annotated[str | None, typer.Option(help="Write a trace for `trunkline simulate` here; no texts are in it.")] = None,
    request_log: Annotated[str | None, typer.Option(help="Write a JSON line per request here; '-' is stdout.")] = None,
    redis: Annotated[
        str | None,
        typer.Option(envvar="TRUNKLINE_REDIS_URL", help="Redis that relays write to; a password is better in the environment."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> int:
    """Run the gateway in front of replicas."""
    from gateway.options import merged_settings
    from gateway.serve import serve

    options = {
        "tokenizer": tokenizer,
        "policy": policy,
        "listen.host": host,
        "listen.port": port,
        "listen.control_host": control_host,
        "listen.control_port": control_port,
        "workers": workers,
        "listen.tls.cert": tls_cert,
        "listen.tls.key": tls_key,
        "api_keys_file": api_keys_file,
        "record.file": record,
        "request_log": request_log,
        "redis.url": redis,
        "log_level": log_level,
    }
    settings = merged_settings(config, replica or [], options)

    def announce(data_port: int, control_port: int) -> None:
        ready = {"data_port": data_port, "control_port": control_port, "policy": settings.policy}
        text = (
            orjson.dumps(ready).decode()
            if json
            else f"trunkline: serving on port {data_port}, control on {control_port}, policy {settings.policy}"
        )
        typer.echo(text)
        sys.stdout.flush()

    if settings.workers > 1:
        from gateway.workers.supervise import serve_workers

        return serve_workers(settings, announce)
    return serve(settings, announce)


@app.command("check-config", epilog="Example: trunkline check-config trunkline.yaml")
def check_config(
    path: Annotated[Path, typer.Argument(help="YAML file.")],
    json: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
) -> int:
    """Read a configuration file the way `serve` does; 1 when it is wrong, naming the key and the value."""
    from events.relay.store import shown_url
    from gateway.check import check_settings
    from gateway.config import load_settings, settings_as_data

    try:
        settings = load_settings(path)
        check_settings(settings)
    except ConfigError as error:
        typer.echo(orjson.dumps({"ok": False, "error": str(error)}).decode() if json else f"error: {error}", err=not json)
        return 1
    data: dict[str, Any] = {"ok": True, "settings": settings_as_data(settings)}
    if settings.redis is not None:
        data["settings"]["redis"]["url"] = shown_url(settings.redis.url)
    typer.echo(orjson.dumps(data).decode() if json else f"{path} is fine: {len(settings.replicas)} replicas, {settings.policy}")
    return 0


@app.command("version")
def version(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> int:
    """Print the version."""
    from importlib.metadata import version as version_of

    number = version_of("trunkline")
    typer.echo(orjson.dumps({"version": number}).decode() if json else number)
    return 0


def _listed_only(command: str) -> None:
    @app.command(command, help=_ROOMS[command][1], add_help_option=False)
    def listed() -> None:  # reached through `_room` before typer sees the arguments
        raise GatewayError(f"`trunkline {command}` must be the first word")


for _command in _ROOMS:
    _listed_only(_command)


if __name__ == "__main__":
    sys.exit(main())
