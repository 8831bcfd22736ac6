"""Joins the trace of a simulated step with that of measured ones, instruction by instruction. Times are seconds."""
import collections
import statistics

WORK = ("zero_gradients", "gradient_norm")  # which a profile counts with the optimizer's step
MESSAGES = ("send_activation", "receive_activation", "send_gradient", "receive_gradient")


class Rank:
    """One rank's step."""

    def __init__(self):
        self.begin = self.end = 0.0
        self.instructions = {}  # by index: (args, begin, end)
        self.exchanges = collections.defaultdict(list)  # by instruction: [(begin, end)]
        self.work = []
        self.reading = []  # samples


def steps_of(trace):
    """{step: {rank: Rank}}"""
    steps = collections.defaultdict(lambda: collections.defaultdict(Rank))
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        args = event["args"]
        begin = event["ts"] / 1e6
        end = begin + event["dur"] / 1e6
        rank = steps[args["step"]][event["pid"]]
        if event["name"] == f"step {args['step']}":
            rank.begin, rank.end = begin, end
        elif event["name"] == "exposed_communication":
            rank.exchanges[args["instruction"]].append((begin, end))
        elif "instruction" in args:
            rank.instructions[args["instruction"]] = (args, begin, end)
        elif event["name"] in WORK:
            rank.work.append((begin, end))
        elif event["name"] == "samples":
            rank.reading.append((begin, end))
    return steps


def meeting_of(rank, index, args, occurrence):
    """What is equal for all who take part in a communication, and only for them."""
    if args["op"] in MESSAGES:
        sends = args["op"].startswith("send")
        pair = (rank, args["peer"]) if sends else (args["peer"], rank)
        return (args["op"].split("_")[1], *pair, args["micro_batch"], args["blocks"].split(",")[0])
    return (args["op"], args.get("group", rank), occurrence)


def transfers_of(ranks):
    """{(rank, instruction): (begin, end)} of communication, from when all who take part have come to it; a message ends when it is received."""
    found, members = {}, collections.defaultdict(list)
    for rank, step in ranks.items():
        seen = collections.Counter()
        for index, (args, begin, end) in sorted(step.instructions.items()):
            if computes(args):
                continue
            group = (args["op"], args.get("group", rank))
            members[meeting_of(rank, index, args, seen[group])].append((rank, index, args, begin, end))
            seen[group] += 1
    for these in members.values():
        begin = max(one[3] for one in these)
        received = [one[4] for one in these if one[2]["op"].startswith("receive")]
        for rank, index, _, _, end in these:
            end = max(received) if received else end
            found[rank, index] = (min(begin, end), end)
    return found


def computes(args):
    return args["op"].startswith(("forward", "backward", "optimizer"))


def without(spans, holes):
    """The parts of some spans that no hole covers."""
    out = []
    for begin, end in spans:
        for low, high in sorted(holes):
            if high <= begin or low >= end:
                continue
            if low > begin:
                out.append((begin, low))
            begin = max(begin, high)
        if end > begin:
            out.append((begin, end))
    return out


def length(spans):
    """Of the union."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def exposed_of(ranks, transfers):
    """(seconds in which a rank waits and does not compute, seconds of these in which something is transferred and no samples are read), means over the
    ranks. A transfer that goes on beyond the step's end counts in its beginning, as that of the step before went on there."""
    waits, moves = [], []
    exchange_begin = collections.defaultdict(float)
    for step in ranks.values():
        for index, spans in step.exchanges.items():
            for turn, (begin, _) in enumerate(spans):
                exchange_begin[index, turn] = max(exchange_begin[index, turn], begin)
    for rank, step in ranks.items():
        exchanges = [span for spans in step.exchanges.values() for span in spans]
        computing = [(begin, end) for args, begin, end in step.instructions.values() if computes(args)] + step.work
        computing = without(computing, exchanges)
        first = min(begin for begin, _ in computing)
        waiting = without([(min(first, step.begin), step.end)], computing)
        communicating = exchanges + [transfers[rank, index] for index, (args, _, _) in step.instructions.items() if not computes(args)]
        communicating += [(begin - (step.end - step.begin), end - (step.end - step.begin)) for begin, end in communicating if end > step.end]
        waits.append(length(waiting))
        waiting = without(waiting, step.reading)
        moves.append(length(waiting) - length(without(waiting, communicating)))
    return statistics.mean(waits), statistics.mean(moves)


def figures_of(ranks):
    """Of one step: its length, its waiting, and of each instruction (rank, index): its kind, duration and start."""
    origin = min(step.begin for step in ranks.values())
    transfers = transfers_of(ranks)
    instructions = {}
    for rank, step in ranks.items():
        optimizer = sum(end - begin for args, begin, end in step.instructions.values() if args["op"] == "optimizer_step")
        scale = 1 + sum(end - begin for begin, end in step.work) / optimizer if optimizer else 1
        for index, (args, begin, end) in step.instructions.items():
            begin, end = transfers.get((rank, index), (begin, end))
            seconds = (end - begin) * (scale if args["op"] == "optimizer_step" else 1)
            instructions[rank, index] = (args["op"], seconds, begin - origin)
    waits, moves = exposed_of(ranks, transfers)
    return {"step": max(step.end for step in ranks.values()) - origin, "waits": waits, "exposed": moves, "instructions": instructions}


def median_of(steps):
    """The medians over several steps of all that figures_of says."""
    return {**{key: statistics.median(step[key] for step in steps) for key in ("step", "waits", "exposed")},
            "instructions": {key: (kind, *(statistics.median(step["instructions"][key][i] for step in steps) for i in (1, 2)))
                             for key, (kind, _, _) in steps[0]["instructions"].items()}}


def weighted_median(pairs):
    """Of (value, weight)."""
    half, seen = sum(weight for _, weight in pairs) / 2, 0.0
    for value, weight in sorted(pairs):
        seen += weight
        if seen >= half:
            return value
    return 0.0


def errors_of(simulated, measured):
    """By kind, and "all": how many, the median absolute relative error of durations, the same weighted by what was measured, the ratio of the sums; and the
    median difference of starts over the step."""
    if simulated["instructions"].keys() != measured["instructions"].keys():
        raise SystemExit("the simulated and the measured trace do not hold the same instructions")
    kinds = collections.defaultdict(list)
    for key, (kind, seconds, begin) in measured["instructions"].items():
        row = (simulated["instructions"][key][1], seconds, abs(simulated["instructions"][key][2] - begin) / measured["step"])
        for name in (kind, "all"):
            kinds[name].append(row)
    out = {}
    for name, rows in kinds.items():
        errors = [(abs(a / b - 1), b) for a, b, _ in rows if b > 0]
        sums = sum(a for a, _, _ in rows), sum(b for _, b, _ in rows)
        out[name] = {"instructions": len(rows), "median": statistics.median(error for error, _ in errors) if errors else None,
                     "weighted": weighted_median(errors), "simulated_s": sums[0], "measured_s": sums[1],
                     "start": statistics.median(start for _, _, start in rows)}
    return out
