"""Texts in many scripts and random strings of every kind that makes tokenizers part ways."""

SENTENCES = [
    "All people are born free, and each of them has a voice; it's theirs, isn't it? They'll say so, and we've heard 1,234.56 of them.",
    "Alle Menschen werden frei geboren; jeder hat eine Stimme. Größe, Äpfel, Übermut, Straße.",
    "Tous les êtres naissent libres; chacun a une voix. L'été, où çà, cœur, naïveté, déjà-vu.",
    "Todos nacen libres; cada uno tiene una voz. ¿Qué más? ¡Mañana, señor, el pingüino!",
    "Tutti nascono liberi; ognuno ha una voce. Perché, così, città, più.",
    "Todos nascem livres; cada um tem uma voz. Ação, coração, pão, às vezes.",
    "Все люди рождаются свободными; у каждого есть голос. Ещё съешь этих мягких булок.",
    "Усі люди народжуються вільними; кожен має голос. Їжак, ґанок, під'їзд.",
    "Όλοι γεννιούνται ελεύθεροι· ο καθένας έχει φωνή. Ἐν ἀρχῇ ἦν ὁ λόγος.",
    "Wszyscy rodzą się wolni; każdy ma głos. Zażółć gęślą jaźń.",
    "Všichni se rodí svobodní; každý má hlas. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Herkes özgür doğar; herkesin bir sesi vardır. İstanbul'da ılık ığdır ağacı.",
    "Mọi người sinh ra đều tự do; ai cũng có tiếng nói. Tiếng Việt có nhiều dấu.",
    "كل الناس يولدون أحرارا، ولكل واحد صوت. اَلْعَرَبِيَّةُ ١٢٣٤٥",
    "כל בני האדם נולדו בני חורין; לכל אחד קול. שָׁלוֹם עוֹלָם",
    "همه آزاد زاده می‌شوند؛ هر کس صدایی دارد. ۱۲۳۴۵ می‌خواهم",
    "सभी लोग स्वतंत्र जन्म लेते हैं; हर एक की एक आवाज़ है। क्षत्रिय १२३४५",
    "সব মানুষ স্বাধীনভাবে জন্মায়; প্রত্যেকের একটি কণ্ঠ আছে। ১২৩৪৫",
    "மனிதர்கள் சுதந்திரமாகப் பிறக்கிறார்கள்; ஒவ்வொருவருக்கும் ஒரு குரல் உண்டு.",
    "ทุกคนเกิดมาเสรี แต่ละคนมีเสียงของตน ๑๒๓๔๕ น้ำ",
    "人人生而自由，每个人都有自己的声音。你好，世界！２０２４年１２月",
    "すべての人は自由に生まれ、それぞれに声がある。こんにちは、ｶﾀｶﾅ、カタカナ、㍿、①②③。",
    "모든 사람은 자유롭게 태어나며, 저마다 목소리가 있다. 안녕하세요, 각각의 값.",
    "ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ։ ሁሉም ሰዎች ነጻ ሆነው ይወለዳሉ።",
    "def main(argc, argv):\n\tfor i in range(10):\n\t\tprint(f\"{i:>4} {x[i] ** 2 != y_}\")  # done\n\n\treturn {'a': 1e-5, \"b\": [None, True]}\r\n",
    "<html><body class=\"x\">&amp; https://example.org/a?b=c&d=%20e#f</body></html> x@y.example ~/.config/{a,b}/*.txt $HOME C:\\dir",
    "😀😀😃 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☕️ 🏳️‍🌈 1️⃣ ✈︎ ∑∫√≠≤ ½ ¾ ² ³ ™ © ® € £ ¥ ﬁ ﬂ Å Å Ω Ω",
]

_SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029",
           "\u202f", "\u205f", "\u3000", "\ufeff", "\x1c", "\x1f"]
_CONTRACTIONS = ["I'll", "don't", "WE'VE", "he'S", "'s", "'\u017f", "they're", "'RE", "o'clock", "'tis", "rock'n'roll", "I\u2019m", "'d", "''s", "'ll've", "\u212a's"]
_SPECIAL = ["<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<left>", "<right>", "<both>", "king", "kings", "é!", "e\u0301!", "<sep>", "<s>", "</s>",
            "<unk>", "<pad>", "<0x41>", "<0xE2>", "<|im_end|><left>", "ing", "\u2581the\u2581", "\u2581", "<", "<|"]
_BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x530), (0x530, 0x900), (0x900, 0xE00), (0xE00, 0x1100),
           (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2E00), (0x3000, 0x3400), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xF8FF),
           (0xF900, 0xFB00), (0xFB00, 0xFE00), (0xFE00, 0x10000), (0x10000, 0x12000), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x2A6E0), (0xE0000, 0xE01F0),
           (0x10FF00, 0x110000)]


def _every_assigned_character():
    """Every code point below U+33500 (beyond it nothing is assigned but private use and tags), eight to a string, between letters, spaces and digits."""
    points = [point for point in list(range(0x33500)) + list(range(0xE0000, 0xE0200)) if not 0xD800 <= point < 0xE000]
    for start in range(0, len(points), 8):
        a, b, c, d, e, f, g, h = (map(chr, (points[start:start + 8] + [0x2E] * 8)[:8]))
        yield f"x{a} {b}1{c}. {d}{e}  {f}'s{g}\n{h}"


def _random_piece(rng, text):
    kind = rng.randrange(10)
    if kind < 3:
        start = rng.randrange(len(text) - 100)
        return text[start:start + rng.randint(1, 80)]
    if kind < 5:
        sentence = rng.choice(SENTENCES)
        start = rng.randrange(len(sentence))
        return sentence[start:start + rng.randint(1, 40)] + rng.choice(_SPACES) + rng.choice(rng.choice(SENTENCES).split())
    if kind < 7:
        out = []
        for _ in range(rng.randint(1, 4)):
            low, high = rng.choice(_BLOCKS)
            out += [chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 6))]
        return "".join(out)
    parts = []
    for _ in range(rng.randint(2, 7)):
        choice = rng.randrange(6)
        if choice == 0:
            parts.append(rng.choice(_SPACES) * rng.randint(1, 4))
        elif choice == 1:
            parts.append(rng.choice(_CONTRACTIONS))
        elif choice == 2:
            parts.append(rng.choice(_SPECIAL))
        elif choice == 3:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
        elif choice == 4:
            parts.append("".join(rng.choice("!?.,;:-_()[]{}#@/\\\"'`~^*+=|&%$") for _ in range(rng.randint(1, 5))))
        else:
            parts.append(rng.choice(rng.choice(SENTENCES).split()) + rng.choice(["", " ", "\n"]))
    return "".join(parts)


def make_pieces(rng, text, count):
    pieces = list(_every_assigned_character())
    pieces.append("")
    pieces.append("a" * 5000 + " " * 3000 + "ab" * 3000)
    while len(pieces) < count:
        pieces.append(_random_piece(rng, text))
    return pieces
