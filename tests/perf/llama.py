"""llama.cpp through llama-cpp-python's plain bindings, as a `Runner`. Knows token ids and one GGUF file.

llama.cpp at its best on a CPU: mmap, repacked weights allowed (its default), flash attention as it chooses, threads = physical
cores, batches of 512, no GPU.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from tests.perf.job import Job, Logits, child_main

BATCH = 512


class Llama:
    """Raises RuntimeError where the file does not load or a batch fails."""

    def __init__(self, path: str, threads: int, context: int, repack: bool = True) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
        model_params.use_extra_bufts = repack  # repacked weights are copies in RAM beside the file's pages
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, BATCH, BATCH
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = False  # as its own command-line tools
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context of {context} tokens")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def read(self, tokens: Sequence[int]) -> Logits:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        for first in range(0, len(tokens), BATCH):
            self._decode(tokens[first : first + BATCH])
        return self._logits()

    def step(self, token: int) -> Logits:
        self._decode([token])
        return self._logits()

    def _decode(self, tokens: Sequence[int]) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens: {status}")

    def _logits(self) -> Logits:
        """Of the last token; waits for the computation."""
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, -1), (self._vocab,))

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def quiet() -> None:
    """Errors alone reach stderr."""
    llama_cpp.llama_log_set(_LOG, ctypes.c_void_p(0))


def _log_errors(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        print(text.decode(errors="replace"), end="", file=sys.stderr)


_LOG = llama_cpp.llama_log_callback(_log_errors)  # llama.cpp keeps the pointer: it must outlive the models


def _load(job: Job) -> tuple[Llama, dict[str, Any]]:
    quiet()
    info = llama_cpp.llama_print_system_info().decode()
    return Llama(job.model, job.threads, job.context), {"version": llama_cpp.__version__, "system": info}


if __name__ == "__main__":
    child_main(_load)
