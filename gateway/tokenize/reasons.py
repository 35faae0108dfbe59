"""Why a prompt has no token ids: the closed set behind `NoTokens.reason`, which becomes a metric label."""

from __future__ import annotations

TEMPLATE = "template"  # the chat template refuses the body; an engine answers it with 400
SHAPE = "shape"  # the body does not hold one prompt in a form that can be tokenized; the engine may judge it
IMAGES = "images"  # content other than text
BATCH = "batch"  # several prompts that share no start
CLIENT_TEMPLATE = "client_template"  # the body brings its own template, which is never run here
TRUNCATION = "truncation"  # the engine is asked to cut the prompt
EMBEDS = "embeds"  # prompt embeddings instead of tokens
NO_TEMPLATE = "no_template"  # a chat body, and the model's folder has no chat template
NO_TOKENIZER = "no_tokenizer"  # none is configured, or it could not be loaded
TOOLS = "tools"  # tools, or calls of them, which each engine turns into a prompt in its own way; chats have one way
THINKING = "thinking"  # what a model thought before, or how it shall think; the same
STATE = "state"  # a part of the prompt is kept by an engine
NO_PROMPT = "no_prompt"  # an API without one, or one whose prompt no cache is looked up for
LOADING = "loading"  # the tokenizer is still being loaded and proven

ALL = frozenset(
    {
        TEMPLATE,
        SHAPE,
        IMAGES,
        BATCH,
        CLIENT_TEMPLATE,
        TRUNCATION,
        EMBEDS,
        NO_TEMPLATE,
        NO_TOKENIZER,
        TOOLS,
        THINKING,
        STATE,
        NO_PROMPT,
        LOADING,
    }
)
