"""A tokenizer is loaded beside the requests, which go by load until it is there; and again where that failed (FC-53)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from gateway.config import TokenizerCaches
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 60.0
_FETCH_HINT = "; `trunkline model fetch smollm2` brings it"


def load_tokenizer(folder: Path, caches: TokenizerCaches) -> CachedTokenizer:
    """Read and prove a folder's tokenizer and the caches that are switched on; raises NoTokens. Takes about a second."""
    tokenizer = Tokenizer.load(folder)
    return CachedTokenizer(tokenizer, segments=caches.segments, plan=caches.plan, lift=caches.lift, budget_mib=caches.budget_mib)


class LoadedTokenizer:
    """The tokenizer of a gateway, from the moment it is loaded."""

    def __init__(self, name: str | None, caches: TokenizerCaches) -> None:
        """name: of the model or its folder; None where none is configured."""
        self._name = name
        self._caches = caches
        self._tokenizer: CachedTokenizer | None = None

    def __call__(self) -> CachedTokenizer | None:
        """It, or None while there is none."""
        return self._tokenizer

    @property
    def state(self) -> str:
        """'ready', 'loading' or 'none'."""
        if self._tokenizer is not None:
            return "ready"
        return "loading" if self._name else "none"

    async def load(self) -> None:
        """Once, in a thread; nothing where none is configured. Raises NoTokens, OSError."""
        if self._name is None:
            return
        folder = model_folder(self._name)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not there{_FETCH_HINT if self._name == 'smollm2' else ''}")
        self._tokenizer = await asyncio.to_thread(load_tokenizer, folder, self._caches)

    async def keep_loading(self) -> None:
        """Until it is there, with growing pauses, never per request (FC-53)."""
        pause_s = 1.0
        while self._tokenizer is None and self._name is not None:
            try:
                await self.load()
            except Exception as error:
                log.error("tokenizer failed to load name=%s retry_s=%.0f error=%s", self._name, pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        if self._tokenizer is not None:
            caches = ",".join(self._tokenizer.caches) or "none"
            log.info("tokenizer ready name=%s vocabulary=%d caches=%s", self._name, self._tokenizer.vocab_size, caches)
