"""The training loop: one run, from wherever its folder stands to its last step."""

from __future__ import annotations

import contextlib
import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lockstep.evaluation.language import HeldOut, score_causal, score_masked
from lockstep.evaluation.samples import continue_text
from lockstep.kernels.backends import using
from lockstep.kernels.record import Ran
from lockstep.models.loss import TokenLosses
from lockstep.models.precision import autocast_to
from lockstep.models.sampling import Sampling
from lockstep.training.checkpoint import Checkpoint, load_weights, model_tensors, newest_checkpoint, save_checkpoint
from lockstep.training.compilation import compile_blocks
from lockstep.training.context import Context, check_same_code, check_same_data
from lockstep.training.distribution import (
    accumulating,
    distribute,
    gather_optimizers,
    gather_weights,
    scatter_optimizers,
    total,
)
from lockstep.training.learning_rate import learning_rate_at
from lockstep.training.ledger import Ledger
from lockstep.training.metadata import checkpoint_metadata
from lockstep.training.optimizers import build_optimizers, set_learning_rate
from lockstep.training.recorder import Recorder, StepRecord
from lockstep.training.replay import Gradients
from lockstep.training.run_folder import prune
from lockstep.training.stopping import Diverged, Interrupted, StopRequest

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Trains one model in one folder; a decay branch starts from its trunk's checkpoint."""

    def __init__(self, context: Context, trunk: Checkpoint | None = None) -> None:
        self.context = context
        self.ran: Ran = set()
        """Kernels, which are its own among those of other runs in this process."""
        self.training, cooling = context.run.training, context.cooling
        self.last_step = context.plan.steps if cooling is None else cooling.end
        self.milestones = context.plan.milestones if cooling is None else (cooling.end,)
        self.ledger = Ledger()
        start = newest_checkpoint(context.folder) or trunk
        if start is not None:
            check_same_data(start, context.prepared)
            check_same_code(start, context.run.model.architecture)
        self.parent = None if start is None else start.digest
        self._build(start)
        self.recorder = Recorder(context, self.ledger.step)

    def _build(self, start: Checkpoint | None) -> None:
        """Model and optimizers, fresh or from a checkpoint."""
        context, training = self.context, self.training
        # The same seed on every process and device gives the same weights: they are drawn on the CPU.
        torch.manual_seed(context.run.seed_for_init)
        self.model = context.model_spec.build() if start is None else context.model_spec.unfilled()
        if start is not None:
            load_weights(self.model, start.weights())
        self.model.gradient_checkpointing = training.use_gradient_checkpointing
        self.model.to(context.device)
        if training.compile:
            compile_blocks(self.model)
        self.callable: nn.Module = distribute(self.model, training.distribution, context.world, context.device)
        self.gradients = Gradients(self.model.parameters(), replayed=self._replayable)
        self.optimizers = build_optimizers(self.model, training)
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=training.precision == "fp16")
        if start is not None:
            state = start.training_state()
            scatter_optimizers(self.model, self.optimizers, state["optimizers"])
            self.scaler.load_state_dict(state["scaler"])
            self.ledger = Ledger(**state["ledger"])

    @property
    def done(self) -> bool:
        return self.ledger.step >= self.last_step

    def advance(self, request: StopRequest) -> None:
        """Train until the next line of the log, unless something stops it: what others do meanwhile costs no time here.

        A run takes as many such turns as it needs; between two of them nothing waits to be written or measured.
        """
        interval = self.context.run.logging.log_interval
        turn = interval - self.ledger.step % interval
        # Others may have taken a turn in between, with a setting of their own.
        torch.set_float32_matmul_precision("high" if self.training.use_tf32 else "highest")
        self.recorder.restart_clock()
        try:
            with using(self.training.backend):
                for _ in range(min(turn, self.last_step - self.ledger.step)):
                    self.step()
                    self.after_step(request)
        except Diverged as diverged:
            kept = newest_checkpoint(self.context.folder)
            where = "no checkpoint was taken before" if kept is None else f"the last good checkpoint is {kept.folder}"
            raise Diverged(f"{diverged}; {where}") from None

    def close(self) -> None:
        self.recorder.close()

    def step(self) -> None:
        """One optimizer step over one global batch."""
        context, index = self.context, self.ledger.step
        torch.manual_seed(step_seed(context.run.seed_for_init, index, context.world.rank))
        rate = learning_rate_at(index, self.training, context.plan.steps, context.cooling)
        set_learning_rate(self.optimizers, rate)
        windows = context.stream.step(index)
        batch = context.batch(windows, index)
        micros = self.training.gradient_accumulation_steps
        nats = torch.zeros((), device=context.device)
        # Processes average their gradients: times their number gives the mean over the whole step.
        share = torch.full((), context.world.size / batch.total, device=context.device)
        for micro in range(micros):
            part = batch.part(micro, micros, context.world.rank, context.world.size, context.device)
            with accumulating(self.callable, micro == micros - 1):
                nats += self.gradients(self._forward_backward, *part, share)
        norm, skipped = self._update()
        self.ledger.record(windows, batch.supervised)
        scored = 0
        if not context.objective.masked:
            scored = int(context.prepared.byte_lengths("train", context.stream.target_places(index)).sum())
        self.recorder.add(
            StepRecord(self.ledger.step, self.ledger.tokens, batch.supervised, scored, rate, nats, norm, skipped)
        )

    def _forward_backward(self, inputs: Tensor, targets: Tensor, weights: Tensor | None, share: Tensor) -> Tensor:
        """Gradients of one micro-batch; the sum of its losses, without smoothing or weights."""
        with self.autocast():
            smoothing = self.training.label_smoothing
            found: TokenLosses = self.callable(inputs, targets=targets, label_smoothing=smoothing)
        counted = found.losses if weights is None else found.losses * weights
        self.scaler.scale(counted.sum() * share).backward()
        return found.nats.sum()

    @property
    def _replayable(self) -> bool:
        """Whether steps may be one CUDA graph: compiled, on one GPU, and nothing asks the host on the way."""
        context, training = self.context, self.training
        alone = context.device.type == "cuda" and context.world.size == 1
        return alone and training.compile and training.precision != "fp16" and not training.use_gradient_checkpointing

    def _update(self) -> tuple[Tensor | None, bool]:
        """Clip, step and clear: the gradient norm before clipping, and whether the step was skipped.

        In half precision a scaled gradient may overflow: then no optimizer steps, and the scale shrinks.
        """
        norm, limit = None, self.training.max_grad_norm
        if limit is not None or self.scaler.is_enabled():
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), float("inf") if limit is None else limit)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        skipped = self.scaler.is_enabled() and norm is not None and not math.isfinite(norm.item())
        for optimizer in self.optimizers if not skipped else ():
            self.scaler.step(optimizer)
        self.scaler.update()
        self.gradients.clear()
        return norm, skipped

    def after_step(self, request: StopRequest) -> None:
        """Whatever is due: records, evaluation, a checkpoint, an interruption."""
        step, run = self.ledger.step, self.context.run
        last, scheduled = step == self.last_step, step in self.milestones
        interval = run.evaluation.interval
        evaluate = last or (interval is not None and step % interval == 0)
        stop = request.signal is not None and not last
        save_interval = self.training.save_interval
        save = scheduled or stop or (save_interval is not None and step % save_interval == 0)
        if evaluate or save or step % run.logging.log_interval == 0:
            self.recorder.flush()
        if evaluate or save:
            # A step's loss was taken before its update, and says nothing about the weights it led to.
            self.recorder.refuse(step, "sum of weights", self._weight_sum())
        if evaluate:
            scores = self.evaluate()
            self.recorder.refuse(step, "evaluation loss", scores["loss"])
            self.recorder.event(step, scores, "evaluation")
        if save:
            self.save(scheduled)
        if evaluate or save:
            self.recorder.restart_clock()
        if stop and request.signal is not None:
            raise Interrupted(f"stopped at step {step}; the same command goes on from there", request.signal)

    def _weight_sum(self) -> float:
        """The sum of all weights, which is a number only if each of them is."""
        tensors = [tensor.detach() for tensor in model_tensors(self.model).values()]
        local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
        sums = torch.stack([tensor.sum(dtype=torch.float64) for tensor in local])
        return total(sums.sum(), self.context.world).item()

    def evaluate(self) -> dict[str, Any]:
        """Held-out scores and, where asked for, a sample; every process computes the same."""
        spec, context = self.context.run.evaluation, self.context
        size = spec.batch_size or context.run.data.batch_size
        data = HeldOut(context.prepared, "valid", context.run.data.max_sequence_length, size, spec.sequences)
        self.model.eval()
        with self.autocast():
            if context.objective.masked:
                probability = self.training.mlm_probability
                scores = score_masked(self.model, data, context.device, probability)
            else:
                scores = score_causal(self.model, data, context.device)
        result: dict[str, Any] = dict(scores.as_dict("masked_perplexity" if context.objective.masked else "perplexity"))
        if spec.sample_prompt is not None and self.model.causal:
            sampling = Sampling(seed=context.run.seed_for_init)
            tokenizer = context.prepared.tokenizer
            result["sample"] = continue_text(self.model, tokenizer, spec.sample_prompt, spec.sample_tokens, sampling)
        self.model.train()
        return result

    def save(self, scheduled: bool) -> None:
        """A checkpoint of this very step; what the log says of earlier steps reaches the disk first."""
        context = self.context
        weights, optimizers = gather_weights(self.model), gather_optimizers(self.model, self.optimizers)
        if not context.world.is_main:
            return
        self.recorder.make_durable()
        state = {
            "optimizers": optimizers,
            "scaler": self.scaler.state_dict(),
            "ledger": self.ledger.as_dict(),
            "total_tokens_processed": self.ledger.tokens,
        }
        metadata = checkpoint_metadata(context, self.ledger, self.parent, scheduled)
        self.parent = save_checkpoint(context.folder, weights, state, metadata).digest
        prune(context.folder, self.milestones, self.training.keep_last, self.ledger.step)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Lower precision where the run asks for it."""
        return autocast_to(self.context.device, AUTOCAST.get(self.training.precision))


def step_seed(seed: int, step: int, rank: int) -> int:
    """Dropout's seed for one step: a pure function, so that no generator state needs saving."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
