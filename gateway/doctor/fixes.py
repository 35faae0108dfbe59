"""The exact words that mend something, by make of engine."""

from __future__ import annotations

_VLLM_EVENTS = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}\''
)
_SGLANG_EVENTS = (
    '--kv-events-config \'{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":""}\''
)
_EVENTS = {
    "vllm": f"start the engine with {_VLLM_EVENTS}",
    "sglang": f"start the engine with {_SGLANG_EVENTS}",
    "trunkline": "start the replica with --events tcp://*:5557 --replay tcp://*:5657",
    "tensorrt_llm": "set kv_cache_config: {enable_block_reuse: true, event_buffer_max_size: 100000} of the engine",
}
_CACHED = {
    "vllm": "start the engine with --enable-prompt-tokens-details",
    "sglang": "start the engine with --enable-cache-report",
}
_CACHING = {
    "vllm": "start the engine without --no-enable-prefix-caching",
    "sglang": "start the engine without --disable-radix-cache",
}
_BLOCK_SIZE = {"vllm": "--block-size", "sglang": "--page-size", "trunkline": "--block-size"}


def events_on(kind: str) -> str:
    """Make the engine publish."""
    return _EVENTS.get(kind, "let the engine publish KV events and set `events` of this replica, or use policy `approximate`")


def replay_on(kind: str) -> str:
    """Make it answer for the past."""
    if kind in ("vllm", "sglang"):
        return 'add "replay_endpoint":"tcp://*:5657" to the engine\'s --kv-events-config'
    return "start the replica with --replay tcp://*:5657" if kind == "trunkline" else "give the engine a replay endpoint"


def cached_on(kind: str) -> str:
    """Make it report cached tokens."""
    return _CACHED.get(kind, "make the engine report usage.prompt_tokens_details.cached_tokens")


def caching_on(kind: str) -> str:
    """Make it keep prefixes."""
    return _CACHING.get(kind, "switch prefix caching on in the engine")


def block_size_flag(kind: str) -> str:
    """The engine's flag for its block size."""
    return _BLOCK_SIZE.get(kind, "its block size flag")
