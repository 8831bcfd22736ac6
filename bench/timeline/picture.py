"""A PNG of two timelines, one above the other, on one scale. Writes the file itself: the benchmarks have no plotting library."""
import struct
import zlib

WIDTH, MARGIN, ROW, GAP = 1400, 150, 24, 6
COLOURS = {"forward": (88, 140, 210), "backward": (70, 160, 110), "backward_input": (70, 160, 110), "backward_weight": (150, 200, 120),
           "optimizer_step": (220, 170, 60), "exposed_communication": (200, 80, 80), "work": (170, 150, 110)}
COMMUNICATION, INK, PAPER, BAND = (200, 80, 80), (40, 40, 40), (255, 255, 255), (238, 238, 240)
# Five columns a letter, bits from the top.
FONT = {"a": "205454787c", "b": "7f48444438", "c": "3844444420", "d": "384444487f", "e": "3854545418", "f": "087e090102", "g": "0c5252523e",
        "h": "7f08040478", "i": "00447d4000", "k": "7f10284400", "l": "00417f4000", "m": "7c04180478", "n": "7c08040478", "o": "3844444438",
        "p": "7c14141408", "r": "7c08040408", "s": "4854545420", "t": "043f444020", "u": "3c4040207c", "v": "1c2040201c", "w": "3c4030403c",
        "x": "4428102844", "y": "0c5050503c", "z": "4464544c44", "0": "3e5149453e", "1": "00427f4000", "2": "4261514946", "3": "2141454b31",
        "4": "1814127f10", "5": "2745454539", "6": "3c4a494930", "7": "0171090503", "8": "3649494936", "9": "064949291e", "-": "0808080808",
        ",": "0050300000", ".": "0060600000", ":": "0036360000"}


class Canvas:
    def __init__(self, width, height):
        self.width, self.height = width, height
        self.rows = [bytearray(bytes(PAPER) * width) for _ in range(height)]

    def box(self, left, top, right, bottom, colour):
        left, right = max(0, int(left)), min(self.width, max(int(left) + 1, int(right)))
        for y in range(max(0, top), min(self.height, bottom)):
            self.rows[y][3 * left:3 * right] = bytes(colour) * (right - left)

    def words(self, left, top, text, scale=2):
        for letter in text.lower():
            for x, column in enumerate(bytes.fromhex(FONT.get(letter, "0000000000"))):
                for y in range(8):
                    if column >> y & 1:
                        self.box(left + x * scale, top + y * scale, left + (x + 1) * scale, top + (y + 1) * scale, INK)
            left += 6 * scale

    def save(self, path):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows), 9)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def draw_rank(canvas, step, origin, top, scale):
    """Computing on one row, communication on one below."""
    def box(begin, end, row, colour, inset=0):
        canvas.box(MARGIN + (begin - origin) * scale, top + row * ROW + inset, MARGIN + (end - origin) * scale - 1, top + (row + 1) * ROW - 2 - inset, colour)

    canvas.box(MARGIN, top, WIDTH - 10, top + 2 * ROW - 2, BAND)
    for begin, end in step.work:
        box(begin, end, 0, COLOURS["work"])
    for args, begin, end in step.instructions.values():
        if args["op"] in COLOURS:
            box(begin, end, 0, COLOURS[args["op"]])
            number = str(args.get("micro_batch", ""))
            if (end - begin) * scale > 14 * len(number) + 4:
                canvas.words(int(MARGIN + (begin - origin) * scale + 4), top + 4, number)
    for args, begin, end in step.instructions.values():
        if args["op"] not in COLOURS:
            box(begin, end, 1, COMMUNICATION, 4)
    for spans in step.exchanges.values():
        for begin, end in spans:
            box(begin, end, 0, COLOURS["exposed_communication"], 5)


def draw(path, label, simulated, measured):
    from compare import transfers_of
    both = (("simulated", simulated), ("measured", measured))
    longest = max(max(step.end for step in ranks.values()) - min(step.begin for step in ranks.values()) for _, ranks in both)
    scale = (WIDTH - MARGIN - 10) / longest
    heights = [len(ranks) * (2 * ROW + GAP) + 40 for _, ranks in both]
    canvas = Canvas(WIDTH, sum(heights) + 70)
    top = 10
    for (title, ranks), height in zip(both, heights):
        origin = min(step.begin for step in ranks.values())
        end = max(step.end for step in ranks.values())
        canvas.words(10, top, f"{label}, {title}: {1e3 * (end - origin):.0f} ms")
        meetings = transfers_of(ranks)
        for row, (rank, step) in enumerate(sorted(ranks.items())):
            for index, span in meetings.items():
                if index[0] == rank:
                    step.instructions[index[1]] = (step.instructions[index[1]][0], *span)
            at = top + 26 + row * (2 * ROW + GAP)
            canvas.words(10, at + 14, f"rank {rank}")
            draw_rank(canvas, step, origin, at, scale)
        top += height
    left = MARGIN
    for name in ("forward", "backward", "backward_weight", "optimizer_step", "work", "exposed_communication"):
        canvas.box(left, top + 6, left + 20, top + 22, COLOURS[name])
        words = {"exposed_communication": "communication", "work": "norm, clearing"}.get(name, name.replace("_", " "))
        canvas.words(left + 26, top + 7, words)
        left += 50 + 12 * len(words)
    canvas.save(path)
