"""The rows of the comparison: one strategy on four hosts, as Tessera's train.yaml says it and as the peer is set up."""
import dataclasses

HOSTS = 4
# Two hosts share a core of this size with what the network takes; eight layers, so that interleaved stages have one each.
MODEL = {"hidden": 384, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1024, "seq": 256, "vocab": 4096}
PIPELINE = {"pp": HOSTS, "micro_batches": 8}


@dataclasses.dataclass
class Row:
    way: str        # as peer.py calls it
    ours: str       # what is compared, for people
    theirs: str
    parallel: dict  # of train.yaml
    batch: int = 8
    seq: int = 256

    @property
    def model(self):
        return {**MODEL, "seq": self.seq}


ROWS = [Row("ddp", "data parallel", "DDP", {"dp": HOSTS, "zero": 0, "micro_batches": 1}),
        Row("zero-3", "ZeRO-3", "FSDP2 (fully_shard)", {"dp": HOSTS, "zero": 3, "micro_batches": 1}),
        Row("tp", "tensor and sequence parallel", "DTensor (parallelize_module)", {"tp": HOSTS, "sequence_parallel": True, "micro_batches": 1}),
        Row("ring", "ring attention", "its ring attention, with the kernel for CPUs, and DDP", {"cp": HOSTS, "context": "ring", "zero": 0, "micro_batches": 1}, 2, 1024),
        Row("1f1b", "1F1B", "Schedule1F1B", {**PIPELINE, "schedule": "1f1b"}),
        Row("interleaved", "interleaved 1F1B", "ScheduleInterleaved1F1B", {**PIPELINE, "schedule": "interleaved", "chunks": 2}),
        Row("zb-v", "zero bubble, V", "ScheduleZBVZeroBubble", {**PIPELINE, "schedule": "zb-v"})]
