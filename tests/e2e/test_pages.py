"""The web pages in a real browser: the chat, the view of the mesh, what a model may write, and how both look.

Screenshots of both pages, for a phone and a desk, in light and in dark, are left in build/screenshots.
"""
import http.client
import json
import os
import re
import signal
from urllib.parse import urlsplit

import pytest

from browser import DESKTOP, PHONE, Browser, Keys
from canned_chat import CannedChat
from conftest import BUILD, PACED, ROOT, Mesh, seconds, wait_until
from streams import Stream, body, words

FILES = os.path.join(ROOT, "services", "gateway", "serve", "pages")
SHOTS = os.path.join(BUILD, "screenshots")
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
       "base-uri 'none'; form-action 'none'")


@pytest.fixture(scope="module")
def paced():
    """Steps of 12 ms, KV at two workers, and measured at the start, so that there is a prediction."""
    with Mesh("--kv-workers", 2, "--local-pool", 0, calibrate=True, **PACED) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def chromium():
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium):
    """Nothing may be left in the console but what a test has taken."""
    chromium.errors()
    yield chromium
    assert chromium.errors() == []


@pytest.fixture(scope="module")
def canned_gateway(paced):
    with CannedChat(paced.url) as canned:
        yield canned


@pytest.fixture
def canned(canned_gateway):
    canned_gateway.requests.clear()
    canned_gateway.key = None
    assert canned_gateway.next.empty()
    yield canned_gateway


# --- without a browser -------------------------------------------------------------------------------------------------


def ask(mesh, method, path, **headers):
    connection = http.client.HTTPConnection(urlsplit(mesh.url).netloc, timeout=seconds(30))
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    return reply, data


def served():
    """(path, file, content type) of all that there is."""
    types = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
    for name in sorted(os.listdir(FILES)):
        kind = types.get(os.path.splitext(name)[1])
        if kind:
            yield {"chat.html": "/", "mesh.html": "/mesh"}.get(name, "/pages/" + name), name, kind


def test_files_are_served_as_they_are(paced):
    for path, name, kind in served():
        reply, data = ask(paced, "GET", path)
        with open(os.path.join(FILES, name), "rb") as file:
            assert (reply.status, data) == (200, file.read()), path
        assert reply.getheader("Content-Type") == kind
        assert reply.getheader("Content-Security-Policy") == CSP
        assert reply.getheader("X-Content-Type-Options") == "nosniff"
        assert reply.getheader("Referrer-Policy") == "no-referrer"
        assert reply.getheader("Cache-Control") == "no-cache"
        head, nothing = ask(paced, "HEAD", path)
        assert (head.status, nothing, head.getheader("Content-Length")) == (200, b"", str(len(data)))
        assert head.getheader("ETag") == reply.getheader("ETag")


def test_what_is_kept_is_not_sent_again(paced):
    etag = ask(paced, "GET", "/")[0].getheader("ETag")
    other = ask(paced, "GET", "/mesh")[0].getheader("ETag")
    assert etag != other
    for given in (etag, f"W/{etag}", f'"x", {etag}', "*", f'{other} , W/{etag}'):
        reply, data = ask(paced, "GET", "/", If_None_Match=given)
        assert (reply.status, data, reply.getheader("ETag")) == (304, b"", etag), given
        assert reply.getheader("Content-Security-Policy") == CSP
    for given in (other, etag[:-2] + '"', etag.strip('"'), '"', "W/", ",,", ""):
        assert ask(paced, "GET", "/", If_None_Match=given)[0].status == 200, given


@pytest.mark.parametrize("path", ["/", "/mesh", "/mesh/state", "/pages/chat.js"])
def test_other_methods_are_refused(paced, path):
    for method in ("POST", "PUT", "DELETE"):
        reply, data = ask(paced, method, path, Content_Length="0")
        assert (reply.status, reply.getheader("Allow")) == (405, "GET")
        assert json.loads(data)["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/mesh/", "/pages/", "/pages/x.js", "/pages/../chat.js", "/pages/chat.html/", "/pages/%00", "/index.html"])
def test_other_paths_are_not_there(paced, path):
    reply, data = ask(paced, "GET", path)
    assert (reply.status, json.loads(data)["error"]["code"]) == (404, "not_found")


def test_no_page_needs_what_the_policy_forbids():
    for _, name, _ in served():
        with open(os.path.join(FILES, name), encoding="utf-8") as file:
            text = file.read()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ' style="', " onclick=\"", "<style"):
            assert word not in text, f"{name} has {word}"


def state(mesh):
    return json.loads(mesh.get("/mesh/state"))


def test_each_page_at_its_address(start_mesh, browser):
    """With --admin-listen the chat is at the public address and the mesh at the other; neither links to where nothing is."""
    mesh = start_mesh("--admin-listen", "127.0.0.1:0")
    with open(os.path.join(mesh.run_dir, "gateway.log"), encoding="utf-8") as log:
        admin = f"http://127.0.0.1:{re.search(r'GATEWAY-LISTENS .*admin_port=([0-9]+)', log.read())[1]}"
    for path in ("/mesh", "/mesh/state"):
        reply, data = ask(mesh, "GET", path)
        assert reply.status == 404 and "--admin-listen" in json.loads(data)["error"]["message"]
    browser.open(mesh.url)
    browser.until(lambda: browser.text("#model"), "the model is not named")
    assert browser.text("nav a") == "Chat"
    browser.open(admin + "/mesh")
    browser.until(lambda: browser.text("#state") == "Ready", "it is not ready")
    assert browser.text("nav a") == "Mesh"


def test_the_mesh_with_a_key(start_mesh, browser, tmp_path):
    """With --admin-key-file the page asks for a key, and shows the mesh with the right one."""
    (tmp_path / "keys").touch(0o600)
    (tmp_path / "keys").write_text("secret-key\n", encoding="ascii")
    mesh = start_mesh("--admin-key-file", tmp_path / "keys")
    browser.open(mesh.url + "/mesh")
    browser.until(lambda: browser.find("#key-form").is_displayed(), "no key is asked for")
    browser.screenshot(os.path.join(SHOTS, "mesh-key.png"))
    browser.find("#key").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: "does not know this key" in browser.text("#state"), "a wrong key is not refused")
    browser.find("#key").clear()
    browser.find("#key").send_keys("secret-key", Keys.ENTER)
    browser.until(lambda: browser.text("#state") == "Ready", "the mesh is not shown")
    assert not browser.find("#key-form").is_displayed()
    assert browser.errors(known=("401", "ERR_CONNECTION_REFUSED")) == []  # a page before it may still ask a mesh that has ended


def test_state_of_the_mesh(paced):
    """What the page reads: bounded, never kept by a cache, and true."""
    wait_until(lambda: [place["up"] for place in state(paced)["mesh"]["places"]].count(True) == 2, 30, "the workers are not up")
    reply, data = ask(paced, "GET", "/mesh/state")
    assert reply.getheader("Content-Type") == "application/json" and reply.getheader("Cache-Control") == "no-store"
    found = json.loads(data)
    assert found["gateway"]["ready"] and found["gateway"]["scheduler_up"]
    mesh = found["mesh"]
    assert sorted(place["name"] for place in mesh["places"] if place["kind"] == "kv_worker") == ["kv-worker-0", "kv-worker-1"]
    assert [(stage["first_layer"], stage["up"]) for stage in mesh["stages"]] == [(0, True)]
    assert [event["number"] for event in mesh["events"]] == list(range(1, len(mesh["events"]) + 1))
    assert {"scheduler": "started", "s-part": "joined", "kv-worker-0": "joined"}.items() <= {e["name"]: e["kind"] for e in mesh["events"]}.items()
    streams = [Stream(paced.url, body(words(20, i), 150)) for i in range(6)]
    for stream in streams:
        stream.join()
    mesh = state(paced)["mesh"]
    assert len(mesh["recent_steps"]) == 64
    for step in mesh["recent_steps"]:
        assert step["sent_us"] <= step["answered_us"] <= mesh["now_us"]
        assert 0 < step["s_part_us"] <= step["total_us"]
        assert step["decode_rows"] + step["prompt_rows"] > 0
    assert mesh["generated_tokens"] >= 6 * 150
    assert sum(place["tokens_read"] for place in mesh["places"]) > 0


# --- the chat, against the mesh ------------------------------------------------------------------------------------


def choose(browser, **fields):
    browser.click("#open-params")
    for name, value in fields.items():
        field = browser.find(f"#param-{name}")
        if field.get_attribute("type") == "checkbox":
            field.click()
        else:
            field.clear()
            field.send_keys(str(value))
    browser.click("#open-params")


def send(browser, text):
    browser.find("#input").send_keys(text, Keys.ENTER)


def is_over(browser):
    return browser.count(".assistant .stats:not(:empty)") == browser.count(".assistant") > 0 and browser.count(".busy") == 0 and \
        not browser.find("#stop").is_displayed()


def answered(browser):
    browser.until(lambda: is_over(browser), "no answer")
    return browser.text(".assistant:last-of-type .text")


def test_an_answer_streams(paced, browser):
    browser.open(paced.url)
    browser.until(lambda: browser.text("#model"), "the model is not named")
    assert browser.text("#model") == state(paced)["gateway"]["model"]
    choose(browser, max_tokens=60, temperature=0, eos=True)
    browser.run("""window.lengths = new Set();
        const look = () => lengths.add(document.querySelector(".assistant .text")?.textContent.length);
        new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});""")
    send(browser, "Tell me about harbours")
    browser.until(lambda: is_over(browser), "no answer")
    assert browser.run("return lengths.size") > 4, "it came all at once"
    assert "first token" in browser.text(".assistant .stats") and "tokens/s" in browser.text(".assistant .stats")
    assert browser.text(".user .text") == "Tell me about harbours"
    assert browser.text("#status") == "The answer is complete."
    assert browser.run("return document.activeElement.id") == "input"


def begin_long(browser, mesh):
    browser.open(mesh.url)
    choose(browser, max_tokens=4000, temperature=0, eos=True)
    send(browser, "Go on for long")
    browser.until(lambda: len(browser.text(".assistant .text")) > 20, "no token came")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(paced, browser, how):
    """What came stays, and the scheduler has nothing more to do for it."""
    before = paced.metric("fastdecode_sequences_cancelled_total")
    begin_long(browser, paced)
    if how == "button":
        browser.button("Stop").click()
    else:
        browser.press(Keys.ESCAPE)
    browser.until(lambda: is_over(browser), "it goes on")
    assert "stopped" in browser.text(".assistant .stats") and len(browser.text(".assistant .text")) > 20
    paced.wait_metric("fastdecode_sequences_cancelled_total", lambda value: value == before + 1)


def test_regenerate_and_edit(paced, browser):
    browser.open(paced.url)
    choose(browser, max_tokens=12, temperature=0, eos=True)
    send(browser, "First question")
    first = answered(browser)
    send(browser, "Second question")
    browser.until(lambda: browser.count(".assistant") == 2, "no second answer")
    second = answered(browser)
    browser.button("Regenerate").click()
    browser.until(lambda: browser.count(".assistant") == 2, "it is not there again")
    assert answered(browser) == second, "greedy, so it is the same"
    browser.button("Edit", ".user:first-of-type").click()
    field = browser.find(".edit textarea")
    assert field.get_attribute("value") == "First question"
    field.send_keys(Keys.ESCAPE)
    assert browser.count(".edit") == 0
    browser.button("Edit", ".user:first-of-type").click()
    browser.find(".edit textarea").send_keys(Keys.CONTROL, "a")
    browser.find(".edit textarea").send_keys("Another question", Keys.ENTER)
    browser.until(lambda: browser.count(".user") == 1 and is_over(browser), "it was not asked again")
    assert browser.text(".user .text") == "Another question" and browser.count(".message") == 2
    assert answered(browser) != first


# --- the chat, with answers of our own -----------------------------------------------------------------------------


def test_nothing_is_sent_that_nobody_chose(canned, browser):
    """How it is sampled is left to the server."""
    browser.open(canned.url)
    canned.answer("Yes.")
    send(browser, "Well?")
    answered(browser)
    assert set(canned.requests[-1]) == {"model", "messages", "stream", "stream_options"}


def test_parameters_are_sent(canned, browser):
    browser.open(canned.url)
    choose(browser, system="Be brief.", temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, max_tokens=99, seed=7, presence_penalty=-0.5,
           flex=True, eos=True, frequency_penalty=0.5, repetition_penalty=1.1, stop="END\n\nSTOP")
    canned.answer("Yes.")
    send(browser, "Well?")
    answered(browser)
    asked = canned.requests[-1]
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"}]
    assert {name: asked[name] for name in asked if name not in ("model", "messages")} == {
        "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 99,
        "seed": 7, "presence_penalty": -0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "stop": ["END", "STOP"],
        "service_tier": "flex", "ignore_eos": True}
    browser.click("#open-params")
    browser.button("Reset").click()
    browser.find("#param-temperature").send_keys("3")
    send(browser, "Too hot")
    assert len(canned.requests) == 1 and browser.run("return document.activeElement.id") == "param-temperature"


def test_history(canned, browser):
    """It is there after a reload; several conversations; export; deletion."""
    browser.open(canned.url)
    for question, reply in (("One", "first"), ("Two", "second")):
        if question == "Two":
            browser.button("New chat").click()
        canned.answer(reply)
        send(browser, question)
        assert answered(browser) == reply
    browser.open(canned.url, fresh=False)
    browser.until(lambda: browser.text("#chat-list .chat-name") == "Two\nOne", "the list is another")
    assert browser.text(".message .text") == "Two\nsecond"
    browser.button("One").click()
    assert browser.text(".message .text") == "One\nfirst"
    browser.run("const real = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then((text) => { window.exported = text; }); return real(blob); };"
                "HTMLAnchorElement.prototype.click = function () { window.exportedAs = this.download; };")
    browser.button("Export").click()
    browser.until(lambda: browser.run("return window.exported"), "nothing was exported")
    exported = json.loads(browser.run("return window.exported"))
    assert [m["content"] for m in exported["messages"]] == ["One", "first"] and browser.run("return window.exportedAs").endswith(".json")
    browser.button("Delete", "#chat-list li:has([aria-current])").click()
    browser.driver.switch_to.alert.accept()
    assert browser.text("#chat-list .chat-name") == "Two" and browser.count(".message") == 0
    assert browser.run("return Object.keys(localStorage).filter((key) => key.startsWith('fastdecode.chat.')).length") == 1


def test_what_is_stored_is_not_trusted(canned, browser):
    """Entries of another version, or of somebody else's: the page comes up without them."""
    browser.open(canned.url)
    for number, value in enumerate(("", "{", "null", "7", '"x"', "[]", '{"id": 7, "messages": []}', '{"id": "a", "messages": [null, {"role": "x", "content": "y"}, 3]}',
                                    '{"id": "b", "messages": [{"role": "user", "content": {}}], "params": 7, "title": [], "changed": "soon"}')):
        browser.run("localStorage.setItem('fastdecode.chat.' + arguments[0], arguments[1])", str(number), value)
    browser.run("localStorage.setItem('fastdecode.params', '[1'); localStorage.setItem('fastdecode.theme', '<b>')")
    browser.open(canned.url, fresh=False)
    browser.until(lambda: browser.count("#chat-list li") == 2, "the list is another")
    canned.answer("Yes.")
    send(browser, "Still there?")
    assert answered(browser) == "Yes."


def test_busy_server(canned, browser):
    """429 says when to ask again, and the question is not lost."""
    browser.open(canned.url)
    canned.refuse(429, "the queue is full", retry_after=2)
    send(browser, "Anybody?")
    browser.until(lambda: browser.count(".problem"), "nothing is said")
    assert "no more requests" in browser.text(".problem") and "the queue is full" in browser.text(".problem")
    assert not browser.find(".problem button").is_enabled() and "Try again in" in browser.text(".problem button")
    assert browser.count(".assistant") == 0 and browser.text(".user .text") == "Anybody?"
    canned.answer("Here.")
    browser.until(lambda: browser.find(".problem button").is_enabled(), "it cannot be asked again")
    browser.find(".problem button").click()
    assert answered(browser) == "Here." and browser.count(".problem") == 0
    browser.errors(known=["429"])


def test_a_key_is_asked_for(canned, browser):
    canned.key = "secret-key"
    browser.open(canned.url)
    browser.until(lambda: browser.find("#key-dialog").is_displayed(), "no key is asked for")
    browser.find("#key").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: browser.find("#key-dialog").is_displayed(), "it is not asked for again")
    browser.find("#key").clear()
    browser.find("#key").send_keys("secret-key", Keys.ENTER)
    browser.until(lambda: browser.text("#model") not in ("", "API key needed"), "the model is not named")
    canned.answer("Open.")
    send(browser, "Sesame")
    assert answered(browser) == "Open."
    assert browser.run("return sessionStorage.getItem('fastdecode.api-key')") == "secret-key"
    assert "secret-key" not in browser.run("return JSON.stringify(localStorage)")
    assert [line for line in browser.errors() if "401" not in line] == []


def test_an_answer_that_breaks_off(canned, browser):
    browser.open(canned.url)
    canned.cut_off("Half an ", "answer")
    send(browser, "Say it")
    browser.until(lambda: browser.count(".problem"), "nothing is said")
    assert browser.text(".assistant .text") == "Half an answer" and "broken off" in browser.text(".assistant .stats")
    canned.refuse(400, "'temperature' must be at most 2")
    browser.button("Regenerate").click()
    browser.until(lambda: "must be at most 2" in browser.text(".problem"), "the reason is not said")
    assert [line for line in browser.errors() if "400" not in line and "ERR_" not in line] == []


HOSTILE = """<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2"><iframe src="javascript:parent.pwned=3"></iframe>

# <b onclick=alert(1)>head</b>

- <svg onload="window.pwned = 4">
- [link](javascript:window.pwned=5) [data](data:text/html,<script>x</script>) [ok](https://example.org/?a=1&b=<i>)

| <u>a</u> | b |
| --- | --- |
| <style>*{display:none}</style> | `<em>x</em>` |

```html
<script>window.pwned = 6</script>
```
![<img src=x>](javascript:window.pwned=7) <https://example.org> &lt;b&gt; <a href="//evil.example">x</a>
"""


def test_html_stays_text(canned, browser):
    """From people and from the model, while it comes and after a reload."""
    browser.open(canned.url)
    canned.answer(*[HOSTILE[i:i + 7] for i in range(0, len(HOSTILE), 7)])
    browser.find("#input").send_keys("x")
    browser.run("const input = document.getElementById('input'); input.value = arguments[0]", HOSTILE)
    browser.find("#input").send_keys(Keys.ENTER)
    answered(browser)
    for _ in range(2):
        made = browser.run("return [...new Set([...document.querySelectorAll('#log *')].map((node) => node.localName))].sort()")
        assert not {"script", "img", "iframe", "svg", "style", "b", "i", "u"} & set(made), made
        assert browser.run("return [...document.querySelectorAll('#log a')].map((a) => [a.getAttribute('href'), a.rel])") == [
            ["https://example.org/?a=1&b=%3Ci%3E", "noopener noreferrer"], ["https://example.org/", "noopener noreferrer"]]
        assert browser.run("return [...document.querySelectorAll('#log *')].every((node) => "
                           "[...node.attributes].every((a) => !a.name.startsWith('on') && a.name !== 'style'))")
        assert browser.run("return window.pwned ?? null") is None
        assert browser.text(".user .text") == HOSTILE.rstrip("\n") or browser.text(".user .text") == HOSTILE
        assert "<script>window.pwned = 1</script>" in browser.text(".assistant .text")
        browser.open(canned.url, fresh=False)
        browser.until(lambda: browser.count(".message") == 2, "the conversation is not there")


# (Markdown, what a browser has made of it: innerHTML)
MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("a < b && c > d \"e\"", "<p>a &lt; b &amp;&amp; c &gt; d \"e\"</p>"),
    ("one\ntwo  \nthree\n\nfour", "<p>one\ntwo<br>three</p><p>four</p>"),
    ("# a\n## b\n### c ###\n#### d\n####### e\n#f", "<h3>a</h3><h4>b</h4><h5>c</h5><h6>d</h6><p>####### e\n#f</p>"),
    ("*a* **b** ***c*** ~~d~~ _e_ __f__", "<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <del>d</del> <em>e</em> <strong>f</strong></p>"),
    ("**a *b* c** and *d **e** f*", "<p><strong>a <em>b</em> c</strong> and <em>d <strong>e</strong> f</em></p>"),
    ("snake_case_name 2 * 3 * 4 **open *open", "<p>snake_case_name 2 * 3 * 4 **open *open</p>"),
    ("\\*not\\* \\# \\`x\\` \\\\", "<p>*not* # `x` \\</p>"),
    ("`a*b*` ``c`d`` `` ` `` `open", "<p><code>a*b*</code> <code>c`d</code> <code>`</code> `open</p>"),
    ("- a\n- b\n  - c\n    1. d\n- e", "<ul><li>a</li><li>b<ul><li>c<ol><li>d</li></ol></li></ul></li><li>e</li></ul>"),
    ("3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>"),
    ("1. a\n\n   more\n\n2. b\n\nafter", "<ol><li>a<p>more</p></li><li>b</li></ol><p>after</p>"),
    ("text\n- a\n* b", "<p>text</p><ul><li>a</li><li>b</li></ul>"),
    ("> a\n> **b**\n\n> > c", "<blockquote><p>a\n<strong>b</strong></p></blockquote><blockquote><blockquote><p>c</p></blockquote></blockquote>"),
    ("---\n***", "<hr><hr>"),
    ("[a](https://e.org/x_y(z)) <http://f.org>", "<p><a href=\"https://e.org/x_y(z)\" rel=\"noopener noreferrer\" target=\"_blank\">a</a> "
     "&lt;<a href=\"http://f.org/\" rel=\"noopener noreferrer\" target=\"_blank\">http://f.org</a>&gt;</p>"),
    ("see https://e.org/a_b_c. Or (https://e.org).", "<p>see <a href=\"https://e.org/a_b_c\" rel=\"noopener noreferrer\" target=\"_blank\">https://e.org/a_b_c</a>. "
     "Or (<a href=\"https://e.org/\" rel=\"noopener noreferrer\" target=\"_blank\">https://e.org</a>).</p>"),
    ("[a](ftp://e.org) [b](//e.org) [c](/x) [d](JaVaScRiPt:x) [e](https:)", "<p>[a](ftp://e.org) [b](//e.org) [c](/x) [d](JaVaScRiPt:x) [e](https:)</p>"),
    ("![p](https://e.org/p.png)", "<p><a href=\"https://e.org/p.png\" rel=\"noopener noreferrer\" target=\"_blank\">p</a></p>"),
    ("| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\n| 2 |", "<div class=\"table\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table><thead><tr><th scope=\"col\">a</th>"
     "<th class=\"center\" scope=\"col\">b</th></tr></thead><tbody><tr><td>1</td><td class=\"center\"><code>x|y</code></td></tr>"
     "<tr><td>2</td><td class=\"center\"></td></tr></tbody></table></div>"),
]


def import_and(browser, module, script, *arguments):
    return browser.driver.execute_async_script(
        f"const args = arguments, done = args[args.length - 1]; import('{module}').then((m) => {{ {script} }}).catch((e) => done('error: ' + e));", *arguments)


def test_markdown(paced, browser):
    browser.open(paced.url)
    found = import_and(browser, "/pages/markdown.js", "done(args[0].map((text) => { const div = document.createElement('div'); m.update(div, text); "
                       "return div.innerHTML; }));", [text for text, _ in MARKDOWN])
    for (text, wanted), made in zip(MARKDOWN, found):
        assert made == wanted, f"{text!r}"


def test_markdown_code(paced, browser):
    browser.open(paced.url)
    code = "def f(x):\n    return x * 2  # <b>\n\n```"
    found = import_and(browser, "/pages/markdown.js",
                       "const div = document.createElement('div'); m.update(div, args[0]); const pre = div.querySelector('pre'); "
                       "done([pre.textContent, div.querySelector('figcaption span').textContent, div.children.length, div.lastChild.textContent]);",
                       f"````python\n{code}\n````\nafter")
    assert found == [code, "python", 2, "after"]


def test_markdown_piece_by_piece_is_as_at_once(paced, browser):
    browser.open(paced.url)
    everything = "\n\n".join(text for text, _ in MARKDOWN) + "\n\n" + HOSTILE
    assert import_and(browser, "/pages/markdown.js",
                      "const grown = document.createElement('div'), whole = document.createElement('div'); "
                      "for (let i = 0; i <= args[0].length; i += 3) m.update(grown, args[0].slice(0, i)); m.update(grown, args[0]); m.update(whole, args[0]); "
                      "done(grown.innerHTML === whole.innerHTML);", everything) is True


@pytest.mark.parametrize("piece", ["**a ", "[", "[a](", "`", "_a", "> ", "- \n", "  - a\n", "|a|b|\n|-|-|\n", "```\n", "<", "![", "~~x", "https://", "*_", "\\", "1. > "])
def test_hostile_markdown_ends(paced, browser, piece):
    """100,000 letters of what is never closed: the script's time limit is the only one."""
    if piece == "**a ":
        browser.open(paced.url)
    made = import_and(browser, "/pages/markdown.js", "const div = document.createElement('div'); m.update(div, args[0].repeat(100000 / args[0].length)); "
                      "done(div.textContent.length);", piece)
    assert isinstance(made, int), made


def test_keyboard(canned, browser):
    browser.open(canned.url)
    field = browser.find("#input")
    canned.answer("Yes.")
    field.send_keys("one", Keys.SHIFT, Keys.ENTER)
    field.send_keys(Keys.NULL, "two")
    assert field.get_attribute("value") == "one\ntwo" and not canned.requests
    field.send_keys(Keys.ENTER)
    answered(browser)
    assert canned.requests[-1]["messages"][-1]["content"] == "one\ntwo"
    browser.run("document.activeElement.blur(); document.body.tabIndex = -1; document.body.focus()")
    order = []
    for _ in range(18):
        browser.press(Keys.TAB)
        order.append(browser.run("const a = document.activeElement; return a.id || a.textContent.trim()"))
        if order[-1] == "send":
            break
    assert order[0] == "Skip to the message field" and order[-2:] == ["input", "send"]
    wanted = ["theme", "new-chat", "export", "open-params", "log", "Copy", "Edit", "Copy", "Regenerate", "input"]
    at = iter(order)
    assert all(name in at for name in wanted), order
    browser.press(Keys.SHIFT, Keys.TAB)


def test_theme_is_kept(paced, browser):
    browser.open(paced.url, scheme="light")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.look_as(scheme="dark")
    dark = browser.run(ground)
    assert light != dark
    browser.click("#theme")
    assert browser.run(ground) == light
    browser.open(paced.url + "/mesh", scheme="dark", fresh=False)
    assert browser.run(ground) == light


# --- the mesh --------------------------------------------------------------------------------------------------------


def service(browser, name):
    return browser.run("return [...document.querySelectorAll('#services li')].find((li) => li.dataset.key === arguments[0])?.dataset.state ?? null", name)


def figure(browser, name):
    return browser.run("return [...document.querySelectorAll('#now div')].find((div) => div.dataset.key === arguments[0])?.lastElementChild.textContent ?? null", name)


def test_the_mesh_at_work(paced, browser):
    """Figures move, lanes fill, steps are drawn, and there is a prediction beside what is measured."""
    browser.open(paced.url + "/mesh")
    streams = [Stream(paced.url, body(words(20, i), 2000)) for i in range(6)]
    try:
        browser.until(lambda: figure(browser, "running") == "6", "six do not run")
        browser.until(lambda: float(figure(browser, "tokens/s").replace("–", "0")) > 0, "no tokens")
        browser.until(lambda: browser.count(".lane .s-part") > 0 and browser.count(".lane .r-part") > 0, "the lanes are empty")
        browser.until(lambda: browser.count("#steps g") == 64, "not the last 64 steps")
            # one worker may have all of them: it seems faster than the other
        browser.until(lambda: browser.count(".places li") == 2 and browser.count(".loads svg .r-part") >= 1, "not both workers, and a load")
        browser.until(lambda: browser.text("#plan tr:first-child td:nth-child(2)") != "–", "no prediction")
        browser.until(lambda: "6 sequences" in browser.text("#plan-text") and "2 workers" in browser.text("#plan-text"), "not for this mesh")
        browser.until(lambda: browser.text("#plan tr:nth-child(2) td:last-child") != "–", "nothing measured beside it")
    finally:
        for stream in streams:
            stream.leave()


def test_a_killed_worker_leaves_and_comes_back(paced, browser):
    browser.open(paced.url + "/mesh")
    browser.until(lambda: service(browser, "kv-worker-1") == "up", "it is not up")
    before = browser.text("#events").count("kv-worker-1")
    os.kill(paced.pid("kv-worker-1"), signal.SIGSTOP)  # dead for the scheduler until it goes on, so that the page is sure to see it
    browser.until(lambda: service(browser, "kv-worker-1") == "down", "it is not down")
    paced.kill("kv-worker-1")
    browser.until(lambda: service(browser, "kv-worker-1") == "up", "it does not come back")
    events = [line for line in browser.run("return [...document.querySelectorAll('#events li')].map((li) => li.textContent)") if "kv-worker-1" in line]
    assert len(events) == before + 2 and "is back" in events[0] and "is down: it was silent" in events[1]
    assert "lost once" in browser.text("#services")


def test_a_worker_that_leaves_says_so(paced, browser):
    """Asked to end: it drains first, and is not counted as lost."""
    browser.open(paced.url + "/mesh")
    browser.until(lambda: service(browser, "kv-worker-0") == "up", "it is not up")
    paced.kill("kv-worker-0", signal.SIGTERM)

    def its_events():
        return [line.split("kv-worker-0 ")[1] for line in browser.text("#events li").split("\n") if "kv-worker-0 " in line]

    browser.until(lambda: its_events()[:1] == ["is back"], "it does not come back")
    assert its_events()[1].startswith("left") and its_events()[2].startswith("is drained") and its_events()[3].startswith("drains")
    assert "lost" not in browser.run("return document.querySelector('#services li[data-key=kv-worker-0]').textContent")


def test_a_gateway_that_goes_away(start_mesh, browser):
    """Without its scheduler the gateway says so; without the gateway the page says so, and both are seen to come back."""
    mesh = start_mesh(scripts={"scheduler": 'test -e "$(dirname "$0")/hold" && exec sleep 1; exec "$program" "$@"'})
    browser.open(mesh.url + "/mesh")
    browser.until(lambda: browser.text("#state") == "Ready", "it is not ready")
    hold = os.path.join(mesh.folder.name, "bin", "hold")
    with open(hold, "w", encoding="ascii"):
        pass
    mesh.kill("scheduler")
    browser.until(lambda: "the scheduler does not answer" in browser.text("#state") and service(browser, "scheduler") == "away", "nothing is said")
    os.unlink(hold)
    browser.until(lambda: browser.text("#state") == "Ready" and service(browser, "scheduler") == "up", "it is not seen to come back")
    mesh.stop()
    browser.until(lambda: "The gateway does not answer" in browser.text("#state"), "nothing is said of the gateway")
    assert [line for line in browser.errors() if "ERR_" not in line] == []


# --- how they look ---------------------------------------------------------------------------------------------------

SHOWN = """Three things about harbours:

1. They shelter **ships** from waves.
2. Their depth decides *which* ships come in.
3. Tides move it by `±2 m`; see [a chart](https://example.org/chart).

```python
def depth(tide_m, chart_m=4.0):
    return chart_m + tide_m  # at the quay, where the long lines of a program do not fit on a phone
```

| harbour | depth | quays |
| --- | ---: | ---: |
| North | 12 m | 4 |
| South | 7.5 m | 2 |

> Measured at low water.
"""


SIZES = {"desktop": DESKTOP, "phone": PHONE}
EVERY_LOOK = [("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")]
TWO_LOOKS = [("desktop", "light"), ("phone", "dark")]


def look(browser, name, looks, whole=False):
    """Screenshots, and nothing that axe-core objects to or that is wider than the screen. whole: as high as the page is."""
    for width, scheme in looks:
        size = SIZES[width]
        browser.look_as(size, scheme)
        browser.until(lambda: browser.run("return innerWidth") == size[0], "the size is another")
        assert browser.run("return document.documentElement.scrollWidth") <= size[0], f"{name} is wider than {size[0]}"
        if whole:
            browser.look_as((size[0], browser.run("return document.documentElement.scrollHeight")), scheme)
        browser.run("const log = document.getElementById('log'); if (log) log.scrollTop = log.scrollHeight")  # axe-core has scrolled
        browser.screenshot(os.path.join(SHOTS, f"{name}-{width}-{scheme}.png"))
        found = browser.axe()
        assert found == [], f"{name} {width} {scheme}:\n" + "\n".join(found)


def test_looks_of_the_chat(canned, browser):
    browser.open(canned.url)
    look(browser, "chat-empty", TWO_LOOKS)
    for question in ("What should I know about harbours?", "And a harbour at night, in the middle of a long winter, seen from a bridge?"):
        canned.answer(*re.findall(r"\S+\s*", SHOWN), finish="length" if "night" in question else "stop")
        send(browser, question)
        answered(browser)
    look(browser, "chat", EVERY_LOOK)
    browser.look_as(PHONE)
    browser.click("#open-params")
    look(browser, "chat-parameters", TWO_LOOKS)
    browser.click("#open-params")
    canned.refuse(429, "the queue is full, try again later", retry_after=40)
    send(browser, "Once more")
    browser.until(lambda: browser.count(".problem"), "nothing is said")
    look(browser, "chat-problem", TWO_LOOKS)
    browser.look_as(PHONE)
    browser.click("#open-chats")
    look(browser, "chat-list", [("phone", "light")])
    browser.errors(known=["429"])


def test_looks_of_the_mesh(paced, browser):
    browser.open(paced.url + "/mesh")
    streams = [Stream(paced.url, body(words(60, i), 2000)) for i in range(12)]
    try:
        browser.until(lambda: browser.count(".lane .r-part") > 3, "the lanes are empty")
        look(browser, "mesh", EVERY_LOOK, whole=True)
    finally:
        for stream in streams:
            stream.leave()
