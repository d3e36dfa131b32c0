"""How a model is trained, and when its checkpoints are taken."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lockstep.config.spec import Name, PathText, Spec

Fraction = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]

Objective = Literal["causal_lm", "masked_lm"]
OptimizerName = Literal["adamw", "muon", "adopt-atan2"]
ScheduleName = Literal["cosine", "wsd", "polynomial", "one-cycle", "constant"]
Precision = Literal["fp32", "bf16", "fp16"]
Backend = Literal["auto", "torch", "triton", "fla"]


class TrainingSpec(Spec):
    """Budget, objective, optimizer, learning-rate schedule, precision and checkpoints."""

    # Budget: `train_steps` wins over `epochs`.
    epochs: PositiveFloat = 1
    train_steps: PositiveInt | None = None
    gradient_accumulation_steps: PositiveInt = 1
    tokens_per_step: PositiveInt | None = None
    """A statement that is checked: batch_size × gradient_accumulation_steps × max_sequence_length."""

    # Objective.
    objective: Objective | None = None
    """None takes the architecture's own: masked_lm for a bidirectional model, causal_lm otherwise."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In the training loss only; every reported loss is without it."""

    # Optimizer.
    optimizer: OptimizerName = "adamw"
    learning_rate: PositiveFloat = 3e-4
    adam_beta1: Momentum = 0.9
    adam_beta2: Momentum = 0.95
    adam_epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """On matrices and convolutions: norms, biases, decays and embeddings are not decayed."""
    max_grad_norm: PositiveFloat | None = 1.0

    # Learning-rate schedule.
    schedule: ScheduleName = "cosine"
    warmup_steps: NonNegativeInt | None = None
    """Wins over `warmup_ratio`."""
    warmup_ratio: Fraction = 0.1
    min_learning_rate_ratio: Fraction = 0.1
    """Where cosine and polynomial end, as a share of the peak."""
    decay_ratio: Fraction = 0.2
    """The share of the steps that WSD's final decay takes, at the end of the run or of a branch."""
    cooled_at: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    """WSD: shares of the budget at which a decay branch gives a cooled point; the end is always cooled."""
    polynomial_power: PositiveFloat = 1.0

    # Precision and memory.
    precision: Precision = "fp32"
    use_amp: bool | None = None
    """`true` is precision fp16 with a gradient scaler."""
    use_tf32: bool = True
    use_gradient_checkpointing: bool = False
    compile: bool = False
    backend: Backend = "auto"
    """Whose kernels may run where there are several."""

    # Checkpoints.
    checkpoint_schedule: tuple[PositiveInt, ...] = ()
    """Steps; the last step is always added."""
    auto_generate_checkpoints: bool = False
    first_epoch_checkpoints: PositiveInt = 20
    subsequent_epochs_spacing: Literal["log", "linear"] = "log"
    log_base: Annotated[float, Field(ge=1.01)] = 2
    linear_interval: PositiveInt | None = None
    min_checkpoint_interval: PositiveInt = 1
    min_checkpoints_per_epoch: PositiveInt = 5
    checkpoint_every_tokens: PositiveInt | None = None
    save_interval: PositiveInt | None = 500
    """Steps between unscheduled checkpoints, which only serve resuming."""
    keep_last: PositiveInt = 2
    """How many unscheduled checkpoints are kept."""
    resume_from_checkpoint: bool | None = None
    """A run resumes by itself; `false` refuses a folder that already holds checkpoints."""

    # Where.
    output_dir: PathText | None = None
    """The run folder; output/<experiment_name> by default."""
    device: Name = "auto"
    distribution: Literal["ddp", "fsdp"] = "ddp"
    """How torchrun's processes share the work."""

    @model_validator(mode="before")
    @classmethod
    def _amp_is_a_precision(cls, data: object) -> object:
        """Resolve seed-style `use_amp` into `precision`; refuse a contradiction between the two."""
        if not isinstance(data, dict) or data.get("use_amp") is None:
            return data
        if not isinstance(data["use_amp"], bool):
            raise ValueError(f"training.use_amp: true or false, not {data['use_amp']!r}")
        implied = "fp16" if data["use_amp"] else "fp32"
        stated = data.get("precision", implied)
        if data["use_amp"] != (stated != "fp32"):
            raise ValueError(f"training.use_amp is {data['use_amp']}, but training.precision is {stated}")
        return {**data, "precision": stated, "use_amp": None}

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TrainingSpec:
        if self.cooled_at and self.schedule != "wsd":
            raise ValueError(f"training.cooled_at needs schedule wsd, but training.schedule is {self.schedule}")
        if self.linear_interval is not None and self.subsequent_epochs_spacing == "log":
            raise ValueError("training.linear_interval needs subsequent_epochs_spacing linear, not log")
        return self
