"""A gateway before two real vLLM engines on the CPU; `make test-vllm`."""
