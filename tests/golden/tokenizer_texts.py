"""The hard texts of tokenizer_make.py: bytes, by group."""
import random

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]

WORDS = """Hello, world!|hello world|The quick brown fox jumps over the lazy dog.|I'm you're he'll they've we'd it's don't
I'M YOU'RE HE'LL THEY'VE WE'D IT'S DON'T|'s's't're've'm'll'd|' s ' t|'S'T'Re'vE|x'sy|l'été d'août|rock 'n' roll|'tis|it''s
antidisestablishmentarianism|supercalifragilisticexpialidocious|camelCaseAndPascalCase snake_case kebab-case SCREAMING_CASE
a|I|.|?!|...|…|-- — – -|"quoted" 'single' “curly” ‘curly’ «guillemets» „low“|(parens) [brackets] {braces} <angles>
foo@example.com|https://example.com/path?query=value&x=1#frag|C:\\Windows\\System32|/usr/local/bin|#hashtag @mention $100 50% &amp;
1|12|123|1234|12345678901234567890|3.14159|1,000,000|1e-10|0x1F|2024-01-31T12:34:56Z|+1 (555) 123-4567|10:30am|a1b2c3|1a 2b 3c|v1.2.3-rc4
٠١٢٣٤٥٦٧٨٩|०१२३|１２３|²³¹ ½ ¾|Ⅷ ⅻ|①②③|一二三四|५ apples|x²+y²=z²|1 2 3|1  2|1\u00a02|12 34|007 |  42""".replace("\n", "|").split("|")

SCRIPTS = """Привет, мир!|Быстрая коричневая лиса прыгает|Γειά σου Κόσμε|你好，世界！|敏捷的棕色狐狸跳过了懒狗。|こんにちは世界|カタカナ ひらがな 漢字
안녕하세요 세계|ㄱㄴㄷ|مرحبا بالعالم|שלום עולם|नमस्ते दुनिया|สวัสดีชาวโลก|வணக்கம் உலகம்|ສະບາຍດີ|မင်္ဂလာပါ|ආයුබෝවන්|გამარჯობა|Բարեւ աշխարհ|ሰላም ልዑል
Xin chào thế giới|Çok güzel İstanbul ığdır|Straße GROẞ ß|Ångström Åse øre|naïve café résumé coöperate|Łódź żółć|fiancée ﬁ ﬂ ﬀ|ĳ Ǆ ǅ ǆ
ſ'ſ 'ſ I'ſ|K Å Ω|𝒳𝓎𝔷 𝕳𝖊𝖑𝖑𝖔|𐍈𐌰𐌽|𓀀𓁐|𠜎𠜱𠝹|ᚠᚢᚦ|ᐃᓄᒃᑎᑐᑦ|ꦗꦮ|ߒߞߏ|ⴰⵣⵓⵍ|mixed кириллица and 中文 in عربى one|русский123текст|中文abc中文|日本語2024年1月|‏עברית‎ RTL marks""".replace("\n", "|").split("|")

MARKS = ["e\u0301", "é", "cafe\u0301 café", "a\u0323\u0301 a\u0301\u0323", "\u0301leading", "Z\u0351\u036b\u0343a\u0329\u0320l\u0348\u0347g\u030d\u0352o", "\u1112\u1161\u11ab 한",
         "\u212b \u00c5 A\u030a", "\u0958 \u0915\u093c", "\u0344", "\ufb2c", "\u2126 \u03a9", "q\u0307\u0323", "ệ e\u0302\u0323 e\u0323\u0302", "\u0f73\u0f71\u0f72", "\U0001d15e", "a\u200db", "\u093f\u0915"]

EMOJI = ["😀", "😀😃😄", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷🇯🇵", "1️⃣2️⃣", "❤️", "☺ ☹ ☃", "👩🏿‍🚀 in space", "text🙂text", "🫠🫡🫥", "©®™", "→←↑↓⇒", "∀x∈ℝ ∃y ≤ ∞", "♠♥♦♣", "█▓▒░", "🧑‍🤝‍🧑🧑‍🤝‍🧑", "😀 😀  😀", "\ufe0f", "\u200d"]

SPACES = [" ", "  ", "   ", "    ", " a", "  a", "   a", "a ", "a  ", "a   ", " a ", "  a  b  ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", "\n\r", "a\nb", "a\n\nb", "a\r\nb", "a \nb", "a\n b", "a \n b", "a  \n  b",
          "\t", "\t\t", "\ta", "a\tb", "\t a", " \ta", "a \t b", "\n\t\n\t", " \n \n \n", "a\n\n\n    b", "\x0b\x0c", "a\x0bb", "a\x0cb", "\x85", "a\x85b", "\u00a0", "a\u00a0b", " \u00a0 ", "\u1680", "\u180e", "a\u180eb", "\u180e\u180e a",
          "\u2003\u2003", "a\u2003b", "\u2028", "a\u2028b\u2029c", "\u202f\u205f", "\u3000", "你\u3000好", "\u200b", "a\u200bb", "\ufeff", "\ufeffhello", "\u2060x", "x  1", "x 1  y", "1 \n2", "  \n!", "!\n\n", "! \n", "!!\r\n\r\n x", "a.\n\nB",
          "def f(x):\n    if x:\n        return x + 1\n    return None\n", "\tfor (int i = 0; i < n; i++) {\n\t\tsum += a[i];\n\t}\n", "{\n  \"key\": [1, 2, 3],\n  \"other\": null\n}", "| a | b |\n|---|---|\n| 1 | 2 |", "- item\n  - sub\n    - subsub\n", "SELECT * FROM t WHERE a='b';--x"]

CONTROL = ["\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f".encode("latin-1").decode("latin-1"), "\u00ad", "\ue000", "\uf8ff", "\U000f0000", "\U0010ffff", "\ufffd", "\ufffe\uffff", "\u0378", "".join(map(chr, range(32))),
           "".join(map(chr, range(33, 127))), "".join(map(chr, range(0x80, 0x100))), "\u0120hello", "\u2581hello", "\u2581 \u2581", "Ġ Ċ", "<0x0A>", "</s><s>", "<unk>"]

BROKEN = [b"\xff", b"\xfe\xff", b"a\xffb", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82 x", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\xf0\x9f", b"\xf0(\x8c\xbc", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xf0\x80\x80\xaf",
          b"\xf0\x8f\xbf\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\x80\x80\x80", b"\xbf\xc3\xa9", b"ok \xe4\xbd ok \xe4\xbd\xa0", b"caf\xe9", b"\xe9t\xe9", b"<|im_end|\xff>", b"\xe2<|im_end|>", bytes(range(128, 256))]

MARKED = ["<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_end|><|im_end|>", "a<|im_end|>b", " <|im_end|> ", "<|im_end|", "|im_end|>", "<<|im_end|>>", "<|<|im_end|>", "<|im_start<|im_end|>", "<|IM_END|>", "<|endoftext|>x<|endoftext|>", "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n<|im_start|>user\nWhat's 1+1?<|im_end|>\n<|im_start|>assistant\n",
          "<repo_name>x<file_sep>y", "<jupyter_start>\n", "<|im_end|>\n\n  <|im_end|>", "é<|im_end|>\u0301", "<empty_output><issue_start>"]

RUNS = [(b"a", 1000), (b" ", 500), (b"\n", 300), (b"\t", 100), (b"1", 200), (b"ab", 400), (b"!", 300), (b"=", 257), ("é".encode(), 200), ("你".encode(), 150), ("😀".encode(), 100), (b" \n", 200), (b"\r\n", 200), (b"a ", 200), (b"<|im_end|", 40), (b"-", 80), (b"\xff", 50), (b"aB", 100), (b"' ", 60), (b"'s", 60)]


def made_up(count, seed):
    """Random mixtures of all the above."""
    source = random.Random(seed)
    parts = WORDS + SCRIPTS + MARKS + EMOJI + SPACES * 3
    return ["".join(source.choice(parts)[:source.randint(1, 12)] for _ in range(source.randint(2, 12))).encode() for _ in range(count)]


def all_texts():
    texts = [t.encode() for t in WORDS + SCRIPTS + MARKS + EMOJI + SPACES + CONTROL] + BROKEN + [t.encode() for t in MARKED] + made_up(120, 1)
    return [b""] + texts


# User-defined pieces, as large vocabularies have them: runs of line breaks, spaces and tabs, and markup.
USER_DEFINED = ["\n" * i for i in range(1, 12)] + ["\u2581" * i for i in range(2, 9)] + ["\t" * i for i in range(1, 5)] + \
    ["<table>", "</table>", "<tr>", "<td>", "</td>", "<h1>", "</h1>", "<code>", "</code>", "<b>", "<bbox>", "[multi]", "日本本"]

BLOCKS = ["def f(x):\n\tif x:\n\t\treturn {\n\t\t\t'a': 1,\n\t\t}\n\n\nclass A:\n    pass\n", "int main(void)\n{\n\tfor (;;) {\n\t\tprintf(\"%d\\n\", i);\n\t}\n}\n\n\n\n",
          "<table>\n  <tr><td>to</td><td>ka</td></tr>\n</table>\n\n<ul>\n\t<li><code>y</code></li>\n</ul>", "<h1>Title</h1><p>a <b>bold</b></p>", "| a | b |\n|---|---|\n|   |   |\n\n\n", "# H\n\n- a\n  - b\n    - c\n",
          "a\tb\tc\n1\t2\t3\n\t\t\t\n", "\n" * 40, "\t" * 40, " " * 40, "x" + " " * 33 + "y", "👍🏽\n\n👨‍👩‍👧‍👦\t🏳️‍🌈", "  lead", "trail  \n\n", "</h1", "<h1<h1>", "[multi]", "日本本 日本", "</s>", "<s>", "<unk>", "\u2581\u2581 \u2581\t"]


def markup(count):
    """Code, tables, markup, tabs, blank lines and emoji."""
    source = random.Random(5)
    parts = BLOCKS + SPACES + WORDS + EMOJI + ["\n\n", "\n", "\t", "  ", "    "] * 4
    return BLOCKS + ["".join(source.choice(parts)[:source.randint(1, 30)] for _ in range(source.randint(2, 8))) for _ in range(count - len(BLOCKS))]


# Pieces that tokens are made of, and those that stand between tokens.
ADDED = ["<x>", "<xy>", "x", "the", "th", "  ", "\n\n", " ", "\t", "<|a|>", "e\u0301", "é", "_", "a b", "\u2581\u2581", "\u2581", "<unk>", "in", "é!", "\u00a0", "|a", "ä", "the\n", "<s>", "日本", "\u200d"]
AROUND = [" ", "  ", "\n", " \n ", "a", "the cat", "x", "é", "E\u0301", "!", "\u2581", "ⓐ", "1", "-", "\u3000", "\u0301", "<", "日"]
