"""Command lines of llama.cpp, its forks, and KoboldCpp."""

from moebench.harness.advise.command_line import Line, room, weights_name
from moebench.substrate.models.gguf_shape import is_gguf

#: Tokens of a logical batch, at least: llama.cpp's own.
LEAST_BATCH = 2048

#: More layers than most models have, and more than any has.
LAYERS, MOST_LAYERS = 99, 999


def llama(line: Line) -> tuple[str, ...]:
    """Return the command lines of llama-server, of llama.cpp or a fork."""
    config, question = line.config, line.question
    ik = line.engine.key == "ik_llama.cpp"
    line.start("-m", weights_name(question))
    _llama_layers(line, ik)
    if config.micro_batch is not None:
        line.add("-ub", config.micro_batch, sets="micro_batch")
        line.add("-b", max(LEAST_BATCH, config.micro_batch))
    line.add_field("-t", "threads")
    line.add("-c", room(question))
    if question.batch > 1:
        line.add("-np", question.batch)
    if config.kv in ("q8_0", "q4_0"):
        line.add("-ctk", config.kv, sets="kv")
        line.add("-ctv", config.kv)
    line.add("-fa", "on")
    _llama_memory(line, ik)
    if config.experts_used is not None:
        _llama_experts_used(line, ik)
    if not is_gguf(question.model):
        line.note(f"{weights_name(question)}: replace by the path of the file")
    return (line.end(),)


def _llama_layers(line: Line, ik: bool) -> None:
    """Add the flags of the placement."""
    config, shape = line.config, line.question.shape
    moe, layers = shape.moe_layers, shape.num_layers
    whole, host = config.whole_layers, config.host_layers
    output = 0 if ik else 1
    if not line.question.hardware.gpu and line.question.hardware.profile is None:
        line.add("-ngl", 0, sets="whole_layers")
        return
    if whole is not None and whole < layers:
        line.add("-ngl", whole + output if whole else 0, sets="whole_layers")
    elif host is not None or ik:
        line.add("-ngl", LAYERS if layers < LAYERS else MOST_LAYERS)
    below = 0 if whole is None else layers - whole
    if host is None and whole is None:
        if ik:
            line.add("--fit")
        line.note(f"{line.engine.name} chooses the layers on the GPU by itself (--fit)")
    elif host is not None and host > sum(layer < below for layer in moe):
        if host >= len(moe):
            line.add("--cpu-moe")
        else:
            line.add("--n-cpu-moe", moe[host - 1] + 1)
    if line.engine.key == "llama.cpp-moe-cache":
        _llama_cache(line, len(moe) if host is None else host)
    if line.question.hardware.cards > 1 and host:
        line.note(
            f"the layers are divided among {line.question.hardware.cards} cards, and --n-cpu-moe "
            "takes experts from the first cards alone: balance with -ts, or name layers with -ot"
        )


def _llama_cache(line: Line, layers: int) -> None:
    """Add the size of the cache of experts, of each card."""
    resident = line.config.resident
    if resident is None:
        line.note("--moe-cache is auto: with one card, give a size in MiB")
        return
    each = line.question.shape.expert_bytes(line.question.bits.routed)
    size = resident * layers * each / 2**20 / line.question.hardware.cards
    line.add("--moe-cache", int(-(-size // 1)), sets="resident")


def _llama_memory(line: Line, ik: bool) -> None:
    """Add the flags of host memory."""
    config = line.config
    if ik and config.repacked:
        line.add("-rtr", sets="repacked")
    elif not ik and config.repacked is not None:
        line.written.add("repacked")
        if not config.repacked:
            line.add("--no-repack")
    if config.mapped is False and ik:
        line.add("--no-mmap", sets="mapped")
    elif config.mapped is False:
        line.add("--load-mode", "none", sets="mapped")
        line.note("--load-mode none is --no-mmap in builds before PR 20834")
    if config.bound:
        line.add("--numa", "distribute", sets="bound")


def _llama_experts_used(line: Line, ik: bool) -> None:
    """Add the number of experts of a token, or a note where it needs the file's architecture."""
    used = line.config.experts_used
    line.written.add("experts_used")
    if ik:
        line.add("-ser", f"{used},1")
    elif not any("expert_used_count" in one for one in line.config.other):
        line.note(
            f"{used} experts of a token: add --override-kv ARCH.expert_used_count=int:{used}, "
            "where ARCH is general.architecture of the file"
        )


def koboldcpp(line: Line) -> tuple[str, ...]:
    """Return the command lines of KoboldCpp."""
    config, shape = line.config, line.question.shape
    moe, layers, whole = shape.moe_layers, shape.num_layers, config.whole_layers
    line.start("--model", weights_name(line.question))
    if line.question.hardware.gpu:
        line.add("--usecuda")
    line.written.add("whole_layers")
    if not line.question.hardware.gpu:
        line.add("--gpulayers", 0)
    elif whole is not None and whole < layers:
        line.add("--gpulayers", whole + 1 if whole else 0)
    elif config.host_layers is not None:
        line.add("--gpulayers", MOST_LAYERS)
    below = 0 if whole is None else layers - whole
    host = config.host_layers or 0
    if line.question.hardware.gpu and host > sum(layer < below for layer in moe):
        line.add("--moecpu", layers if host >= len(moe) else moe[host - 1] + 1)
    line.add_field("--threads", "threads")
    choices = line.engine.by_spelling["--batchsize"].choices
    if str(config.micro_batch) in choices:
        line.add_field("--batchsize", "micro_batch")
    line.add("--contextsize", room(line.question))
    if config.kv in ("q8_0", "q4_0"):
        line.add("--quantkv", 1 if config.kv == "q8_0" else 2, sets="kv")
    line.add("--flashattention")
    line.add_field("--moeexperts", "experts_used")
    line.written.add("mapped")  # the file is read without --usemmap
    if config.mapped:
        line.add("--usemmap")
    return (line.end(),)
