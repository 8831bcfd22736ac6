"""A trillion parameters on paper, from what the other parts have measured in the same run."""

PARAMETERS, SERVERS, TRAINERS = 1e12, 50, 100
CORES, GBIT, MEMORY = 16, 25, 256e9  # of each host
HOT = 0.1                            # of the rows, that are kept in memory where tables lie on disk as well
SAMPLES, COLUMNS = 4096, 26          # of a trainer's batch
DISK_ROWS = 2.0                      # what a log of rows takes of the disk beside the rows: it is compacted when half of it counts


def scale(dimension, service, growth):
    """`service`: of our side of the comparison; `growth`: of the largest number of servers."""
    rows = PARAMETERS / dimension
    row_bytes = service["insert"]["resident_bytes_of_a_row"]
    keys_of_a_core = 1e6 * service["pull + push zipf"]["million_keys_per_s"]
    key_bytes = growth["pull + push zipf"]["bytes_of_a_key"]
    # Servers take part with a core for each thread; trainers are asked for half of theirs, as a worker computes beside.
    limits = {"servers' cores": SERVERS * CORES * keys_of_a_core,
              "servers' links": SERVERS * GBIT * 1e9 / 8 / key_bytes,
              "trainers' links": TRAINERS * GBIT * 1e9 / 8 / key_bytes,
              "trainers' cores": TRAINERS * CORES / 2 * keys_of_a_core}
    keys = min(limits.values())
    return {"rows": rows, "memory_of_a_server": rows * row_bytes / SERVERS, "memory_with_disk": HOT * rows * row_bytes / SERVERS,
            "disk_of_a_server": DISK_ROWS * rows * row_bytes / SERVERS, "limits": limits, "samples_per_s": keys / COLUMNS,
            "step_seconds": TRAINERS * SAMPLES * COLUMNS / keys, "fits": rows * row_bytes / SERVERS <= MEMORY}


def show_scale(told):
    print(f"\non paper: {PARAMETERS:.0e} parameters on {SERVERS} servers and {TRAINERS} trainers of {CORES} cores, {GBIT} Gbit/s and {MEMORY / 1e9:.0f} GB each, Zipf keys")
    print(f"  rows = parameters / dimension: {told['rows']:.3g}")
    print(f"  memory of a server = rows x bytes of a row / servers: {told['memory_of_a_server'] / 1e9:.0f} GB, which {'fits' if told['fits'] else 'does not fit'}; "
          f"with {HOT:.0%} of the rows in memory {told['memory_with_disk'] / 1e9:.0f} GB, and {told['disk_of_a_server'] / 1e9:.0f} GB of disk")
    for name, keys in told["limits"].items():
        print(f"  keys/s by the {name}: {keys:.3g}")
    print(f"  the least of them / {COLUMNS} columns: {told['samples_per_s']:.3g} samples/s; exchanging a step of {SAMPLES} samples a trainer takes {1e3 * told['step_seconds']:.0f} ms")
