"""What others claimed, with numbers and sources: claims to be tested, not facts.

Numbers are those that were printed; what was read off a figure says so. Perplexities of the papers are of WikiText, by
models that were trained on FineWeb-Edu.
"""

from __future__ import annotations

from lockstep.report.claim import (
    Answers,
    Because,
    Better,
    Changed,
    Claim,
    Elsewhere,
    Entrant,
    Faster,
    Measure,
    Score,
    only,
)
from lockstep.report.published import (
    GUIDE_BABILONG,
    GUIDE_LENGTHS,
    MIRAS_TABLE,
    OURS,
    TITANS_TABLE,
    VARIANTS,
    K,
    Source,
    find,
)

TITANS = "arXiv 2501.00663"
MIRAS = "arXiv 2504.13173"
ATLAS = "arXiv 2505.23735"
FIRST_COMPARISON = "An earlier comparison of a Titans with a vanilla transformer"
BASELINES_GUIDE = "A guide to baselines for Titans and MIRAS"

NAMES = {
    "transformer++": "Transformer++",
    "retnet": "RetNet",
    "gla": "GLA",
    "deltanet": "DeltaNet",
    "gated-deltanet": "Gated DeltaNet",
    "mamba2": "Mamba-2",
    "titans-lmm": "Titans LMM",
    "titans-mac": "Titans MAC",
    "titans-mag": "Titans MAG",
    "titans-mal": "Titans MAL",
    "yaad": "Yaad",
    "moneta": "Moneta",
    "memora": "Memora",
}
PERPLEXITY: dict[str, dict[str, float]] = {
    "transformer++": {"340M": 31.52, "400M": 30.63, "760M": 25.21},
    "retnet": {"340M": 32.50, "760M": 26.08},
    "gla": {"340M": 28.51},
    "deltanet": {"340M": 28.65, "760M": 24.37},
    "gated-deltanet": {"340M": 27.01, "760M": 21.18},
    "mamba2": {"400M": 26.34, "760M": 22.94},
    "titans-lmm": {"340M": 26.18, "760M": 20.04},
    "titans-mac": {"340M": 25.43, "760M": 19.93},
    "titans-mag": {"340M": 25.07, "760M": 18.61},
    "titans-mal": {"340M": 24.69, "760M": 19.07},
    "yaad": {"340M": 26.61, "760M": 20.99},
    "moneta": {"340M": 26.19, "760M": 21.18},
    "memora": {"340M": 27.16, "760M": 22.28},
}
"""On WikiText, by size: table 1 of Titans; the last three table 2 of MIRAS."""


def printed(better: str, worse: str) -> Better:
    """An ordering that holds at every size at which both were printed."""
    ours, theirs = PERPLEXITY[better], PERPLEXITY[worse]
    sizes = ", ".join(f"{ours[size]:.2f} against {theirs[size]:.2f} at {size}" for size in ours if size in theirs)
    miras = {"yaad", "moneta", "memora"} & {better, worse}
    source = f"{TITANS}, table 1" + (f", and {MIRAS}, table 2" if miras else "")
    text = f"{NAMES[better]} has a lower perplexity on WikiText than {NAMES[worse]}: {sizes}"
    return Better(source, text, only(better), only(worse), smallest=340e6)


ORDERINGS = (
    *(printed(variant, "transformer++") for variant in VARIANTS),
    *(printed(variant, "gated-deltanet") for variant in VARIANTS),
    *(printed(rival, "transformer++") for rival in ("gated-deltanet", "mamba2", "deltanet", "gla")),
    printed("transformer++", "retnet"),
    *(printed(memory, "transformer++") for memory in ("yaad", "moneta", "memora")),
    *(printed("titans-lmm", memory) for memory in ("yaad", "moneta", "memora")),
    Better(
        f"{MIRAS}, table 2, and {ATLAS}, table 2",
        "At 1.3B Yaad has a lower perplexity on WikiText than Titans LMM: 15.18 against 15.60",
        only("yaad"),
        only("titans-lmm"),
        parameters=1.3e9,
    ),
    Elsewhere(
        f"{TITANS}, table 1",
        "Perplexities on WikiText such as 31.52 of Transformer++ and 25.43 of Titans MAC at 340M",
        "training on 15B tokens of FineWeb-Edu with the Llama-2 tokenizer at 340M, and scores on WikiText",
    ),
)

WHOLE = 27.01
"""Titans LMM in table 5: the mean of two perplexities at 400M."""


def ablated(part: str, perplexity: float) -> Better:
    text = f"Titans LMM is better than without {part}: perplexity {WHOLE:.2f} against {perplexity:.2f}"
    return Better(f"{TITANS}, table 5", text, only("titans-lmm"), Entrant(("titans-lmm",), part), smallest=400e6)


def with_attention(variant: str, perplexity: float) -> Better:
    text = f"{NAMES[variant]} is better than Titans LMM: perplexity {perplexity:.2f} against {WHOLE:.2f}"
    return Better(f"{TITANS}, table 5", text, only(variant), only("titans-lmm"), smallest=400e6)


ABLATIONS = (
    ablated("a deep memory", 28.49),
    ablated("convolution", 28.73),
    ablated("momentum", 28.98),
    ablated("forgetting", 29.04),
    Elsewhere(
        f"{TITANS}, table 5",
        f"Titans LMM is better than without persistent tokens: perplexity {WHOLE:.2f} against 27.63",
        "persistent tokens in Titans LMM; here they enter attention only, of which it has none",
    ),
    with_attention("titans-mac", 26.67),
    with_attention("titans-mag", 25.70),
    with_attention("titans-mal", 25.91),
)

FIGURE_9 = f"{TITANS}, figure 9, read off"


def trains_faster(faster: str, slower: str, rates: tuple[float, float], length: int, at_any: bool = False) -> Faster:
    """Thousands of tokens per second at a length."""
    numbers = f"{rates[0]:.1f}K against {rates[1]:.1f}K tokens/s at {length // 1024}K tokens"
    text = f"{NAMES[faster]} trains faster than {NAMES[slower]}: {numbers}" + (
        ", and alike at others" if at_any else ""
    )
    return Faster(FIGURE_9, text, only(faster), only(slower), None if at_any else length)


THROUGHPUT = (
    trains_faster("transformer++", "titans-mac", (49.9, 36.1), 2048),
    trains_faster("titans-mac", "transformer++", (36.0, 34.8), 8192),
    trains_faster("titans-mac", "transformer++", (35.9, 24.1), 16_384),
    trains_faster("mamba2", "gated-deltanet", (42.3, 40.0), 4096, at_any=True),
    trains_faster("gated-deltanet", "titans-lmm", (40.0, 35.3), 4096, at_any=True),
    trains_faster("titans-mal", "titans-mac", (40.8, 36.0), 4096, at_any=True),
    Elsewhere(
        FIGURE_9,
        "Rates such as 36.0K tokens/s of Titans MAC at 4K",
        "the paper's hardware and model size, which it does not state",
    ),
)

SCORES: dict[str, tuple[str, float, float]] = {
    "Transformer++": ("transformer++", 1.05, 0.95),
    "Mamba-2": ("mamba2", 1.02, 0.93),
    "Titans (default)": ("titans-mac", 0.99, 0.90),
    "Titans (YAAD)": ("yaad", 0.98, 0.89),
}
"""Bits per byte of enwik8 at 50M and at 360M."""


def guide_orders(better: str, worse: str) -> Better:
    (ours, small, medium), (theirs, other_small, other_medium) = SCORES[better], SCORES[worse]
    numbers = f"{small:.2f} against {other_small:.2f} at 50M, {medium:.2f} against {other_medium:.2f} at 360M"
    text = f"{better} has fewer bits per byte on enwik8 than {worse}: {numbers}"
    return Better(BASELINES_GUIDE, text, only(ours), only(theirs), smallest=50e6)


def guide_score(name: str, size: str) -> Score:
    architecture, small, medium = SCORES[name]
    value, parameters = (small, 50e6) if size == "50M" else (medium, 360e6)
    text = f"{name} has {value:.2f} bits per byte on enwik8 at {size}"
    return Score(BASELINES_GUIDE, text, only(architecture), value, "enwik8", parameters)


def on_babilong(name: str, figure: str) -> Elsewhere:
    claimed = " and ".join(", ".join(map(str, GUIDE_BABILONG[name])).rsplit(", ", 1))
    text = f"{name} answers {claimed} % of BABILong at 4K, 64K, 256K and 1M tokens"
    needs = f"its models and the samples of BABILong itself; figure 6 of {TITANS}, read off, has {figure}"
    return Elsewhere(BASELINES_GUIDE, text, needs)


def more_of_babilong(place: int) -> Answers:
    """Of the guide's lengths."""
    ours, theirs = (GUIDE_BABILONG[name][place] for name in ("Titans", "Mamba-2"))
    text = f"Titans answers more of BABILong than Mamba-2 at {('4K', '64K', '256K', '1M')[place]} tokens: "
    numbers = f"{ours} against {theirs} %"
    length = GUIDE_LENGTHS[place]
    return Answers(BASELINES_GUIDE, text + numbers, Entrant(VARIANTS), only("mamba2"), "babilong", None, length)


def on_noise(memory: str) -> Better:
    text = f"{NAMES[memory]} is better than Titans on noisy data"
    return Better(BASELINES_GUIDE, text, only(memory), only("titans-lmm"), noisy=True)


FIXED_STATE = Entrant(("mamba", "mamba2", "retnet", "gla", "deltanet", "gated-deltanet", "linear-attention"))

GUIDE = (
    guide_orders("Mamba-2", "Transformer++"),
    guide_orders("Titans (default)", "Transformer++"),
    guide_orders("Titans (default)", "Mamba-2"),
    guide_orders("Titans (YAAD)", "Titans (default)"),
    *(guide_score(name, size) for size in ("50M", "360M") for name in SCORES),
    *(more_of_babilong(place) for place in range(len(GUIDE_LENGTHS))),
    on_babilong("GPT-4", "74 % at 4K and 43 % at 64K"),
    on_babilong("Mamba-2", "Mamba, fine-tuned: 99 % at 4K and 96 % at 64K"),
    on_babilong("Titans", "Titans MAC, fine-tuned: 99 % at 4K, 97 % at 64K and 94 % at 1M"),
    Answers(
        BASELINES_GUIDE,
        "Beyond 64K tokens Titans keeps its accuracy, where models of fixed state lose theirs: it then answers more",
        Entrant(VARIANTS),
        FIXED_STATE,
        "babilong",
        None,
        64 * K,
        beyond=True,
    ),
    *(on_noise(memory) for memory in ("yaad", "moneta", "memora")),
)

NEEDLES = {"number": "numbers", "word": "words"}


def finds_more(better: str, worse: str, level: str, source: Source = TITANS_TABLE) -> Answers:
    """At the longest length that was printed."""
    ours, theirs = (find(source, name, level).percent for name in (better, worse))
    length = max(ours)
    numbers = f"{ours[length]:.1f} against {theirs[length]:.1f} %"
    text = f"{better} finds more {NEEDLES[level]} in a haystack of {length // K}K tokens than {worse}: {numbers}"
    return Answers(source.name, text, Entrant(OURS[better]), Entrant(OURS[worse]), "needles", level, length)


HAYSTACKS = (
    *(finds_more("Titans MAC", rival, level) for level in NEEDLES for rival in ("Mamba2", "DeltaNet", "TTT")),
    *(finds_more("Titans LMM", rival, "word") for rival in ("Mamba2", "DeltaNet", "TTT")),
    finds_more("Titans MAC", "Titans LMM", "word"),
    *(finds_more(memory, "Gated DeltaNet", "number", MIRAS_TABLE) for memory in ("Yaad", "Moneta", "Memora")),
)

SOME_TITANS = Entrant(VARIANTS)
VANILLA = Entrant(("transformer++", "gpt2"))


def changed(text: str, measure: Measure, change: float, within: float = 0.0) -> Changed:
    return Changed(FIRST_COMPARISON, text, SOME_TITANS, VANILLA, measure, change, within)


COMPARISON = (
    changed("Titans has a perplexity of +0.1 % against the vanilla transformer", "perplexity", 0.001),
    changed("Titans has an accuracy of +0.0 points against the vanilla transformer", "accuracy", 0.0),
    changed(
        "Titans takes +21,410.5 % of time per token against the vanilla transformer, that is 215.1 times",
        "decode time",
        214.105,
        within=0.2,
    ),
    Elsewhere(
        FIRST_COMPARISON,
        "Titans takes 0.0 % more memory than the vanilla transformer while it generates, about 1000 MB each",
        "its way of counting, which took weights and a library's reserve for memory in use",
    ),
    Elsewhere(
        FIRST_COMPARISON,
        "Titans takes about 2.15 s per token; by 215.1 times, the vanilla transformer takes about 10 ms",
        "its machine, sizes and context, which are not stated",
    ),
    Elsewhere(
        FIRST_COMPARISON,
        "Both come to an accuracy of 5 to 6 % and are stable after about 200 steps",
        "its sizes, batch and rate, which are not stated",
    ),
    Because(
        FIRST_COMPARISON,
        "The slowdown is primarily due to the operations of the memory",
        SOME_TITANS,
        VANILLA,
        "memory",
    ),
)

CLAIMS: tuple[Claim, ...] = (*COMPARISON, *GUIDE, *ORDERINGS, *ABLATIONS, *HAYSTACKS, *THROUGHPUT)
