"""Interference: whoever tokenizes long prompts gets the time that others leave. What that is worth is `make bench ONLY=interference`'s."""
import os

from streams import words


def threads(pid):
    """{thread: (does it yield to others, nanoseconds that it has run)}"""
    found, usual = {}, os.getpriority(os.PRIO_PROCESS, pid)
    for name in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{name}/schedstat", encoding="ascii") as file:
            ran_ns = int(file.read().split()[0])
        thread = int(name)
        yields = os.sched_getscheduler(thread) == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, thread) > usual
        found[thread] = (yields, ran_ns)
    return found


def test_tokenizing_yields(mesh):
    pid, text = mesh.pid("gateway"), words(7000, 5)
    before = threads(pid)
    for _ in range(20):
        assert mesh.post("/tokenize", {"prompt": text})["count"] >= 7000
    after = threads(pid)
    yielding, others = (sum(ran - before.get(thread, (yields, 0))[1] for thread, (yields, ran) in after.items() if yields == which)
                        for which in (True, False))
    print(f"{yielding / 1e6:.1f} ms by threads that yield, {others / 1e6:.1f} ms by others")
    assert others > 0 and yielding > others
