"""The texts that oracle.py scores and continues: written for this purpose, in several registers, languages and notations."""

# Scored as they are, without a token in front. {"name": ..., "text": ...}
SCORED = [
    {"name": "harbour", "text": """The harbour at Lindvik is smaller than the maps suggest. A traveller who arrives by the morning ferry sees first the two cranes, then the yellow customs house, and only after the boat has turned does the town itself appear, stacked on its hill like books on a crowded shelf. In winter the ice reaches the second pier. The fishermen say that the third pier has never frozen, because a warm spring rises somewhere beneath it, but nobody has ever found the spring, and the older men admit that they have not looked very hard.

Marta Ekholm kept the lighthouse for thirty-one years. She wrote down the weather four times a day in a ledger with a green cover, and when one ledger was full she began another. There are forty-six of them now in the town archive. Most entries are short: the direction of the wind, the height of the waves, whether the lamp had needed cleaning. But sometimes she allowed herself a sentence more. On the ninth of March she wrote that a whale had come into the bay and stayed until noon. On the tenth she wrote that the whale had not come back, and that she had expected it to.

When the lamp was replaced by an electric one, the council sent a letter to thank her and to say that the ledgers would no longer be required. She continued them anyway. The last entry gives the wind as light, from the south-west, and the sea as calm. Underneath, in a different ink, somebody has added that the weather on the following day was the same.

Today the lighthouse is a museum. Children from the school visit it in June, and each of them is allowed to turn the brass handle that once wound the clockwork. The guide tells them that the light could be seen from a distance of eighteen nautical miles, and asks them how many kilometres that is. There is always one child who knows."""},
    {"name": "physics", "text": """A pendulum is a weight that hangs from a fixed point and is free to swing. If the swing is small, the time that it takes to go back and forth once depends only on the length of the string and on the strength of gravity, not on the weight and not on how far it was pulled aside. This surprises most people, who expect a heavy weight to fall faster or a wide swing to take longer.

The reason is simple. When the weight is pulled twice as far, it has twice as far to travel, but the force that pulls it back is also twice as large. The two effects cancel. In symbols, the period is T = 2 * pi * sqrt(L / g), where L is the length in metres and g is about 9.81 metres per second squared. A pendulum of one metre therefore has a period of 2.006 seconds, which is why the clocks of the eighteenth century that beat once a second are all about as tall as a person.

For larger swings the formula is no longer exact. At an angle of 30 degrees the true period is longer by 1.7 percent; at 60 degrees, by 7.3 percent; at 90 degrees, by 18 percent. A clock maker who wants to lose no more than one second in a day must therefore keep the swing below two or three degrees, and must keep its size constant.

Temperature matters as well. A steel rod grows longer by about twelve millionths of its length for every degree. Between a cold night and a warm day, with a difference of ten degrees, a clock with a steel pendulum loses about five seconds. Some makers used wood, which changes less; others combined two metals, so that one pushed the weight up exactly as much as the other let it down."""},
    {"name": "code-c", "text": """/* A ring buffer of bytes for one writer and one reader. The capacity is a power of two. */
struct ring {
    unsigned char *bytes;
    size_t capacity;
    size_t head; /* total bytes written */
    size_t tail; /* total bytes read */
};

static size_t ring_used(const struct ring *ring)
{
    return ring->head - ring->tail;
}

static size_t ring_free(const struct ring *ring)
{
    return ring->capacity - ring_used(ring);
}

/* Copies up to count bytes into the ring and returns how many fitted. */
size_t ring_write(struct ring *ring, const void *source, size_t count)
{
    const unsigned char *from = source;
    size_t room = ring_free(ring);
    if (count > room)
        count = room;
    for (size_t i = 0; i < count; i++)
        ring->bytes[(ring->head + i) & (ring->capacity - 1)] = from[i];
    ring->head += count;
    return count;
}

/* Copies up to count bytes out of the ring and returns how many there were. */
size_t ring_read(struct ring *ring, void *target, size_t count)
{
    unsigned char *to = target;
    size_t used = ring_used(ring);
    if (count > used)
        count = used;
    for (size_t i = 0; i < count; i++)
        to[i] = ring->bytes[(ring->tail + i) & (ring->capacity - 1)];
    ring->tail += count;
    return count;
}
"""},
    {"name": "code-python", "text": """import collections
import heapq


class Graph:
    \"\"\"A directed graph with non-negative weights on its edges.\"\"\"

    def __init__(self):
        self.edges = collections.defaultdict(list)

    def add_edge(self, source, target, weight):
        if weight < 0:
            raise ValueError(f"negative weight: {weight}")
        self.edges[source].append((target, weight))

    def shortest_path(self, start, goal):
        \"\"\"Return (distance, path), or (inf, []) if the goal cannot be reached.\"\"\"
        queue = [(0, start, [start])]
        seen = set()
        while queue:
            distance, node, path = heapq.heappop(queue)
            if node == goal:
                return distance, path
            if node in seen:
                continue
            seen.add(node)
            for target, weight in self.edges[node]:
                if target not in seen:
                    heapq.heappush(queue, (distance + weight, target, path + [target]))
        return float("inf"), []


if __name__ == "__main__":
    graph = Graph()
    graph.add_edge("a", "b", 4)
    graph.add_edge("a", "c", 1)
    graph.add_edge("c", "b", 2)
    print(graph.shortest_path("a", "b"))  # (3, ['a', 'c', 'b'])
"""},
    {"name": "languages", "text": """Der Zug nach Freiburg fährt heute von Gleis sieben ab. Reisende mit Fahrrädern werden gebeten, die hinteren Wagen zu benutzen. Wir danken für Ihr Verständnis und wünschen eine angenehme Fahrt.
Le marché du samedi commence à sept heures. On y trouve des pommes, du fromage de chèvre, du miel, et parfois, au printemps, les premières fraises. La boulangère connaît tout le monde par son prénom.
El río baja crecido después de las lluvias de abril. Los niños tiran piedras desde el puente y cuentan los segundos hasta oír el golpe en el agua. Nadie recuerda un año con tanta nieve en las montañas.
Il treno era in ritardo di venti minuti, così abbiamo bevuto un altro caffè al bar della stazione e abbiamo parlato del tempo, come si fa sempre.
Сегодня утром шёл дождь, но к полудню небо прояснилось. Мы пошли гулять в парк и кормили уток на пруду.
今日は朝から雨が降っていましたが、昼には晴れました。公園を散歩して、池の鴨を見ました。
今天早上下雨，中午天晴了。我们去公园散步，看了池塘里的鸭子。
Σήμερα το πρωί έβρεχε, αλλά το μεσημέρι βγήκε ο ήλιος."""},
    {"name": "table", "text": """| city      | population | founded | river   |
| --------- | ---------- | ------- | ------- |
| Arden     |     48,210 |    1284 | Welle   |
| Brunnsee  |    112,904 |    1021 | Ocker   |
| Cormont   |      9,377 |    1650 | none    |
| Dellworth |    301,556 |     877 | Thornas |

{"name": "Brunnsee", "population": 112904, "districts": ["North", "Old Town", "Harbour"], "mayor": {"name": "Ida Lind", "since": 2019}, "twinned": null, "coastal": false}

<ul>
  <li><a href="/cities/arden">Arden</a></li>
  <li><a href="/cities/brunnsee">Brunnsee</a></li>
</ul>

17 + 25 = 42. 144 / 12 = 12. 3 * 3 * 3 = 27. 1000 - 1 = 999. 2^10 = 1024. The sum of the first 100 numbers is 5050."""},
    {"name": "chat", "text": """<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
What should I take with me on a walk in the mountains?<|im_end|>
<|im_start|>assistant
Take water, something to eat, a warm jacket, a map, and a small first aid kit. Tell somebody where you are going and when you expect to be back.<|im_end|>
<|im_start|>user
And if the weather changes?<|im_end|>
<|im_start|>assistant
Turn back early. In the mountains the weather can change within half an hour. Get off ridges and away from single trees when you hear thunder, and wait in a low place until the storm has passed.<|im_end|>
<|im_start|>user
Thank you. Write that as a short list.<|im_end|>
<|im_start|>assistant
1. Turn back early.
2. Leave ridges and single trees when there is thunder.
3. Wait in a low place until the storm has passed.<|im_end|>
"""},
    {"name": "odd", "text": "aaaaaaaaaaaaaaaa bbbbbbbb  cc   d\n\n\n\t\tzzz 0000000 1234567890 !!!???... $#@%^&*() \U0001F600\U0001F680 <|endoftext|>The end. The end. The end. The end. The end."},
]

# Continued by the oracle's own draws (temperature 1, a fixed seed), then scored: long sequences of ordinary text.
DRAWN = [
    {"name": "drawn-1024", "text": "The history of the canal begins", "length": 1024, "seed": 1},
    {"name": "drawn-chat", "text": "<|im_start|>user\nExplain how bread is made.<|im_end|>\n<|im_start|>assistant\n", "length": 600, "seed": 2},
    {"name": "drawn-code", "text": "def parse_config(path):\n", "length": 400, "seed": 3},
    {"name": "drawn-story", "text": "Once upon a time, in a village by the sea,", "length": 500, "seed": 4},
]

_CHAT = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"

# Continued greedily for 64 tokens, whatever they are (an end token does not end them).
GREEDY = [
    "The capital of France is",
    "Once upon a time there was a little fox who",
    "def fibonacci(n):\n",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "The three states of matter are",
    "In 1969, the first human beings",
    "1, 2, 3, 4, 5, 6,",
    "Roses are red,",
    "La capitale de l'Italie est",
    _CHAT % "What is the largest planet in the solar system?",
    _CHAT % "Write a haiku about the sea.",
    _CHAT % "Give me three reasons to learn a second language.",
    _CHAT % "How do I boil an egg?",
    "<|im_start|>system\nYou answer in one sentence.<|im_end|>\n" + _CHAT % "Why is the sky blue?",
]
