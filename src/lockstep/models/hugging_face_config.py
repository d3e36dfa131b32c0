"""Configurations of the transformers library: read, resized to a run's sizes, and made into networks.

Nothing is fetched and no code that comes with a model is run: a configuration is a mapping with a `model_type` that the
library knows, and weights are safetensors files of a local folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lockstep.errors import UserError

CONFIG = "config.json"
NAMES = {
    "vocab_size": ("vocab_size",),
    "dim": ("hidden_size",),
    "depth": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "hidden": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dff"),
    "max_length": ("max_position_embeddings",),
    "tie_embeddings": ("tie_word_embeddings",),
}
"""Our fields, and what families of the library call them; most of a family's own words are aliases of the first."""
DROPOUTS = (
    "dropout",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_dropout",
    "resid_pdrop",
)
"""What families call dropout outside attention."""
IGNORED = ("_attn_implementation", "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype")
"""How somebody ran a model, and code that it came with."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Ids of another tokenizer; and a packed stream has no padding, whose vector would get no gradient."""

SHOWN_LAYERS = 64
"""More are not looked at to know a network's kinds of layers: a slip of the pen may ask for millions."""

Configuration = dict[str, Any]
"""The contents of a config.json."""


def library() -> Any:
    """The transformers library, or one line that says how to get it."""
    # Kernels that the library would fetch by itself are left where they are.
    os.environ.setdefault("USE_HUB_KERNELS", "NO")
    try:
        import transformers
    except ModuleNotFoundError:
        raise UserError("architecture hf: needs the transformers library; pip install 'lockstep-lm[hub]'") from None
    except ImportError as error:
        raise UserError(f"architecture hf: transformers cannot be imported: {in_one_line(error)}") from None
    return transformers


def read_configuration(path: Path) -> Configuration:
    """The mapping in a config.json, or in the one of a folder."""
    file = path.expanduser() / CONFIG if path.expanduser().is_dir() else path.expanduser()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file; nothing is downloaded, give a local path") from None
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{file}: not a JSON file") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a mapping of keys to values")
    return found


def library_config(configuration: Mapping[str, Any]) -> Any:
    """The library's own object for a configuration, or one line that says what is wrong with it."""
    kind = configuration.get("model_type")
    transformers = library()
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        remote = ", and its own code is never run" if "auto_map" in configuration else ""
        raise ValueError(f"model_type {kind} is not known to transformers {transformers.__version__}{remote}")
    if configuration.get("quantization_config") is not None:
        raise ValueError("quantization_config: quantised weights cannot be trained")
    fields = {key: value for key, value in configuration.items() if key not in (*IGNORED, *TOKENS)}
    with told(f"model_type {kind}"):
        config = _without_tokens(transformers.AutoConfig, fields)
    if word(config, "is_decoder") is not None:
        config.is_decoder = True  # what makes BERT and its relatives causal
    if word(config, "vocab_size") is None:
        raise ValueError(f"model_type {kind} is not a language model of its own; give its text_config")
    return config


def _without_tokens(auto: Any, fields: Configuration) -> Any:
    """No special tokens, or the first one of the vocabulary where a family insists on some."""
    try:
        return auto.for_model(**fields, **dict.fromkeys(TOKENS))
    except Exception:
        return auto.for_model(**fields, **dict.fromkeys(TOKENS, 0))


def word(config: Any, name: str) -> Any:
    """What a library's configuration says under a name, if anything; some refuse with errors of their own."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def has(config: Any, name: str) -> bool:
    """Whether a library's configuration, or a family of them, has such a word."""
    try:
        return hasattr(config, name)
    except Exception:
        return False


def said(config: Any) -> dict[str, Any]:
    """What a library's configuration says of our fields; a field that it has no word for is left out."""
    found = {field: word(config, _name(config, field)) for field in NAMES}
    sizes: dict[str, Any] = {field: value for field, value in found.items() if isinstance(value, int)}
    if found["hidden"] is None and has(config, _name(config, "hidden")):
        sizes["hidden"] = None  # the family's own choice, as in our models
    rates = [float(word(config, name)) for name in _dropouts(config)]
    return {**sizes, "dropout": max(rates)} if rates else sizes


def resized(configuration: Mapping[str, Any], asked: Mapping[str, Any]) -> Configuration:
    """A configuration with the sizes that are asked for, where its family has a word for them.

    What followed from the old sizes follows from the new ones: the width of a head, as many keys as queries, and the
    kinds of layers of a pattern.
    """
    try:
        config = library_config(configuration)
    except ValueError:
        # Half a configuration may be wrong without the sizes: they are written in before it is read.
        return resized(_written(configuration, asked), asked)
    known = said(config)
    changed = {field: value for field, value in asked.items() if field in known and known[field] != value}
    result, sizes = dict(configuration), {**known, **changed}
    if changed.keys() & {"dim", "heads"} and _is_shared(config.to_dict().get("head_dim"), known):
        result["head_dim"] = sizes["dim"] // sizes["heads"]
    if "heads" in changed and word(config, "num_key_value_heads") == known["heads"]:
        result["num_key_value_heads"] = sizes["heads"]
    if "depth" in changed:
        result.pop("layer_types", None)
    for field, value in changed.items():
        for name in _dropouts(config) if field == "dropout" else (_name(config, field),):
            result.pop(name, None)
            result[config.attribute_map.get(name, name)] = value
    return _confirmed(result, changed)


def _written(configuration: Mapping[str, Any], asked: Mapping[str, Any]) -> Configuration:
    """A configuration with all sizes that its family has a word for."""
    result, known = dict(configuration), library().CONFIG_MAPPING
    kind = result.get("model_type")
    if isinstance(kind, str) and kind in known:
        family = known[kind]
        words = {field: _name(family, field) for field in NAMES if field in asked}
        result |= {name: asked[field] for field, name in words.items() if has(family, name)}
    library_config(result)  # or it is wrong for another reason
    return result


def _confirmed(configuration: Configuration, changed: Mapping[str, Any]) -> Configuration:
    """A few families make something else of what they are told."""
    if changed:
        found = said(library_config(configuration))
        for field, value in changed.items():
            if found.get(field) != value:
                raise ValueError(
                    f"{field} {value} becomes {found.get(field)} in model_type {configuration['model_type']};"
                    f" leave {field} to hf.config"
                )
    return configuration


def network(configuration: Mapping[str, Any]) -> Any:
    """The library's model of a configuration, initialised by the library, in float32."""
    config = library_config(configuration)
    options: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": False}
    if torch.get_default_device().type == "meta":
        # Of the ways to run a mixture of experts, the one that needs no values to know its shapes.
        options["experts_implementation"] = "batched_mm"
    with told(f"model_type {config.model_type}"):
        return _with_all_rows(library().AutoModelForCausalLM.from_config(config, **options))


def _with_all_rows(model: Any) -> Any:
    """Every row of the token table learns."""
    table = model.get_input_embeddings()
    if isinstance(table, nn.Embedding):
        table.padding_idx = None
    return model


def pretrained(configuration: Mapping[str, Any], folder: Path) -> Any:
    """The library's model with the weights of a local folder, every one of them, in float32."""
    if not folder.is_dir():
        raise UserError(f"hf.folder: {folder}: no such folder; nothing is downloaded")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"hf.folder: {folder}: no .safetensors file; use hf.config for a model without weights")
    transformers = library()
    try:
        with quiet(transformers.utils.logging):
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=library_config(configuration),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:
        raise UserError(f"hf.folder: {folder}: {in_one_line(error)}") from None
    # The library would draw at random what it does not find.
    absent = sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])])
    if absent:
        raise UserError(f"hf.folder: {folder}: {len(absent)} weights are missing or of another shape, as {absent[0]}")
    return _with_all_rows(model).train()


@lru_cache(maxsize=64)
def _shapes(text: str) -> dict[str, torch.Size]:
    """The shapes of all parameters and buffers of the network of a configuration, given as JSON."""
    configuration = json.loads(text)
    if said(library_config(configuration)).get("depth", 0) > SHOWN_LAYERS:
        configuration = resized(configuration, {"depth": SHOWN_LAYERS})
    with torch.device("meta"):
        model: nn.Module = network(configuration)
    return {name: tensor.shape for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def shapes(configuration: Mapping[str, Any], **asked: int) -> dict[str, torch.Size]:
    """The shapes of all parameters and buffers, at other sizes where they are asked for."""
    return _shapes(json.dumps(resized(configuration, asked), sort_keys=True))


def grows_with(configuration: Mapping[str, Any], field: str) -> set[str]:
    """The parameters and buffers that one more token, or one more position, makes larger."""
    size = said(library_config(configuration)).get(field)
    if size is None:
        return set()
    before, after = shapes(configuration), shapes(configuration, **{field: size + 1})
    return {name for name, shape in before.items() if after.get(name, shape) != shape}


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Whatever the library says against a configuration, in one line."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {in_one_line(error)}") from None


@contextlib.contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Without the library's bars and reports: what matters in them is checked."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def in_one_line(error: Exception, limit: int = 200) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= limit else words[: limit - 1] + "…"


def _name(config: Any, field: str) -> str:
    """What a configuration, or a family of them, calls one of our fields."""
    names: list[str] = [config.attribute_map.get(name, name) for name in NAMES[field]]
    return next((name for name in names if has(config, name)), names[0])


def _dropouts(config: Any) -> list[str]:
    return [name for name in DROPOUTS if isinstance(word(config, name), int | float)]


def _is_shared(width: Any, sizes: Mapping[str, Any]) -> bool:
    """Whether the heads share the model's width."""
    return isinstance(width, int) and width * sizes.get("heads", 0) == sizes.get("dim")
