"""vLLM in this process: all prompts at once, completions as they finish, logprobs of the sampled distribution.

Data parallelism is `--slice i/n`, `--ray` or several servers: one engine a process. Per-request seeds with chunked
prefill kill vLLM's CPU engine (its generator has no offset), so there prefill is not chunked.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import DataError, MissingDependency, StageFailure
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat
from toolsample_cli.models.digests import folder_digest, model_digest
from toolsample_cli.models.tokenizer_files import remember_fingerprint
from toolsample_cli.rollout.types import PROCESSED, Completion, Engine, Request, Sampling

if TYPE_CHECKING:
    import torch
    from vllm import LLM, CompletionOutput, SamplingParams
    from vllm.lora.request import LoRARequest

MEMORY = "lower gpu_memory where others use the GPU, raise it where the cache is too small, or raise tensor_parallel"


class VllmEngine(Engine):
    """One vLLM engine. Options: `chat`, and `engine_options`, which go to `vllm.LLM` as they are."""

    name = "vllm"
    chat: Chat
    max_prompt_tokens: int

    def __init__(
        self,
        model: str | Path,
        config: RolloutConfig,
        *,
        chat: Chat | None = None,
        engine_options: Row | None = None,
    ) -> None:
        # not by distribution metadata: the CPU build is distributed under another name
        if importlib.util.find_spec("vllm") is None:
            raise MissingDependency("vllm", needed_for="backend vllm", install="pip install 'toolsample[vllm]'")
        self.policy = str(model)
        self.chat = chat or Chat.load(model, self_examples=config.self_examples)
        remember_fingerprint(self.policy, self.chat)
        self.adapter = config.adapter
        self.options = {**_options(self.policy, config), **(engine_options or {})}
        self.llm = _open(self.options)
        _watch(self.llm.llm_engine.engine_core)
        self.digest = model_digest(self.policy, self.adapter)
        settings = self.llm.llm_engine.vllm_config
        self.max_prompt_tokens = settings.model_config.max_model_len - 1
        self.stop_ids = tuple(sorted({*self.chat.end_ids, *_declared_ends(self.llm)}))
        self._dtype = str(settings.model_config.dtype).removeprefix("torch.")
        self._device = str(settings.device_config.device_type)
        self._round = 0

    def describe(self) -> Mapping[str, object]:
        """What generates: model digest, dtype, device, vLLM's version, logprob convention, hashes."""
        import vllm

        return {
            "model_digest": self.digest,
            "dtype": self._dtype,
            "device": self._device,
            "engine": f"vllm {vllm.__version__}",
            "logprobs": PROCESSED,
            "stop_ids": list(self.stop_ids),
            **self.chat.fingerprint,
        }

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, as they finish; what is left when the iterator is closed is aborted."""
        engine, lora, self._round = self.llm.llm_engine, self._lora(), self._round + 1
        waiting: dict[str, Request] = {}
        try:
            for number, request in enumerate(requests):
                name = f"{self._round}-{number}"
                prompt = {"prompt_token_ids": list(request.prompt_ids)}
                engine.add_request(name, prompt, self._params(request, sampling), lora_request=lora)
                waiting[name] = request
            while waiting:
                for out in engine.step():
                    if out.finished:
                        yield _completion(waiting.pop(out.request_id), out.outputs[0])
        except engine_faults() as error:
            waiting.clear()  # there is nothing left to abort
            raise StageFailure(
                f"vLLM's engine failed: {_first_line(error)}",
                hint=f"its messages are above; finished rows are kept, rerun to resume; if they name memory: {MEMORY}",
            ) from error
        finally:
            if waiting and self.llm is not None:
                engine.abort_request(list(waiting))

    def _params(self, request: Request, sampling: Sampling) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        room = self.max_prompt_tokens + 1 - len(request.prompt_ids)
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=min(sampling.max_new_tokens, room),
            stop_token_ids=[*sampling.with_stop(*self.stop_ids).stop_ids],
            seed=request.seed,
            logprobs=0,  # of the sampled token alone
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=True,
            skip_special_tokens=False,  # a stop string may hold one
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _lora(self) -> LoRARequest | None:
        if not self.adapter:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("adapter", 1, self.adapter)

    def load_weights(self, weights: str | Path | Mapping[str, torch.Tensor]) -> None:
        """Take the weights of a model folder of the same shape, or a state dict, without rebuilding the engine."""
        if not isinstance(weights, str | Path):
            import tempfile

            from safetensors.torch import save_file

            with tempfile.TemporaryDirectory() as folder:  # the engine may live in another process
                contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in weights.items()}
                save_file(contiguous, Path(folder) / "model.safetensors", metadata={"format": "pt"})
                self._reload(folder)
                self.digest = folder_digest(Path(folder)) or "state dict"
            return
        self._reload(str(weights))
        self.policy, self.digest = str(weights), model_digest(str(weights))

    def _reload(self, folder: str) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        self.llm.reset_prefix_cache()  # what was cached belongs to the old weights

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None


def _options(model: str, config: RolloutConfig) -> Row:
    options: Row = {
        "model": model,
        "tokenizer": config.tokenizer or model,
        "dtype": config.dtype,
        "seed": config.seed % 2**31,
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": config.tensor_parallel,
        "gpu_memory_utilization": config.gpu_memory,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    if config.adapter:
        options |= {"enable_lora": True, "max_lora_rank": _allowed_rank(Path(config.adapter))}
    if _on_cpu():
        options |= {"enable_chunked_prefill": False, "enforce_eager": True}
        options["gpu_memory_utilization"] = min(config.gpu_memory, 0.3)  # here it is a share of the machine's memory
        options["dtype"] = "float32" if config.dtype == "auto" else config.dtype
        length = _longest(model)  # without chunks a step must hold the longest prompt
        if length:
            options["max_num_batched_tokens"] = max(length, 8192)
    return options


def _allowed_rank(adapter: Path) -> int:
    """The smallest rank vLLM can be told that holds this adapter's; DataError when the folder holds none."""
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    try:
        rank = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        fitting = [allowed for allowed in get_args(MaxLoRARanks) if allowed >= rank]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{adapter}: no adapter that vLLM can take: {type(error).__name__}: {_first_line(error)}",
            hint="expected a local folder with adapter_config.json (rank `r`) and adapter_model.safetensors",
        ) from error
    if not fitting:
        raise DataError(f"{adapter}: an adapter of rank {rank}; vLLM takes at most {max(get_args(MaxLoRARanks))}")
    return min(fitting)


def engine_faults() -> tuple[type[Exception], ...]:
    """What vLLM raises when its engine fails; its own kinds are no RuntimeError."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    return RuntimeError, EngineDeadError, EngineGenerateError


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _longest(model: str) -> int | None:
    file = Path(model) / "config.json"
    return json.loads(file.read_text()).get("max_position_embeddings") if file.is_file() else None


def _open(options: Row) -> LLM:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # vLLM reads it when it is imported
    from vllm import LLM

    try:
        return LLM(**options)
    except (OSError, ValueError) as error:
        if "memory" in str(error):
            raise StageFailure(f"vLLM lacks memory: {_first_line(error)}", hint=MEMORY) from error
        raise DataError(f"{options['model']}: vLLM cannot open this model: {_first_line(error)}") from error
    except RuntimeError as error:
        raise StageFailure(
            f"vLLM's engine did not start: {_first_line(error)}",
            hint=f"its own messages are above; if they name memory: {MEMORY}",
        ) from error


def _watch(core: object) -> None:
    """Wake the caller when an engine process is killed: vLLM notices, but leaves who waits for answers waiting.

    With the engine in this process there is nothing to watch.
    """
    processes = getattr(getattr(getattr(core, "resources", None), "engine_manager", None), "processes", ())
    answers, ends = getattr(core, "outputs_queue", None), [process.sentinel for process in processes]
    if answers is None or not ends:
        return

    def wait() -> None:
        multiprocessing.connection.wait(ends)
        answers.put_nowait(RuntimeError("an engine process ended"))

    threading.Thread(target=wait, name="engine-watch", daemon=True).start()


def _declared_ends(llm: LLM) -> list[int]:
    declared = llm.llm_engine.vllm_config.model_config.try_get_generation_config().get("eos_token_id")
    return declared if isinstance(declared, list) else [] if declared is None else [declared]


def _completion(request: Request, out: CompletionOutput) -> Completion:
    ids = list(out.token_ids)
    if out.finish_reason not in ("stop", "length"):
        return Completion(request.key, request.sample, error=f"engine: finished with {out.finish_reason}")
    logps = [entry[token].logprob for entry, token in zip(out.logprobs or [], ids, strict=False)]
    if len(logps) != len(ids):
        return Completion(request.key, request.sample, error=f"engine: {len(logps)} logprobs for {len(ids)} tokens")
    return Completion(request.key, request.sample, ids, logps, out.finish_reason)
