// mesh.js: the mesh as it works: asks the gateway for its state once a second while somebody looks, and shows it.
import { byId, element, setText } from "./dom.js";
import { bar, count, duration, figures, keyed, lane, partsOf, percent, steps } from "./mesh_draw.js";
import { History } from "./mesh_history.js";

const STATE = "/mesh/state", EVERY_MS = 1000, EVERY_MOST_MS = 8000, ANSWER_MS = 5000, LANES_MAX = 40;
const history = new History();
let wait = EVERY_MS, timer = null, adminKey = "";

const WORDS = {
    started: "started", joined: "joined", back: "is back", drains: "drains: its sequences move away", drained: "is drained: nothing is left there",
    left: "left", down: "is down", refused: "is refused",
};

// --- parts of the page ---------------------------------------------------------------------------------------------

function showState(gateway, mesh) {
    const [word, text] = !mesh ? ["bad", `Not ready: ${gateway.reason || "the scheduler does not answer"}`]
        : gateway.ready ? ["good", "Ready"] : ["warn", `Not ready: ${gateway.reason}`];
    byId("state").className = word;
    setText(byId("state"), text);
    setText(byId("model"), gateway.model);
}

function showNow(mesh, gateway) {
    const tokens = history.rate((look) => look.generated_tokens), ran = history.rate((look) => look.steps);
    figures(byId("now"), [
        ["tokens/s", tokens === null ? "–" : tokens.toFixed(1), "tokens generated a second, over the last five seconds"],
        ["running", count(mesh.running + mesh.running_batch), "sequences that have a place"],
        ["waiting", count(mesh.waiting + mesh.waiting_batch), `sequences in the queue, at most ${count(mesh.max_queue)} interactive ones`],
        ["predicted wait", mesh.predicted_wait_ms ? duration(mesh.predicted_wait_ms * 1e3) : "none", "of a request that arrived now"],
        ["steps/s", ran === null ? "–" : ran.toFixed(1), "steps that were sent, over the last five seconds"],
        ["mini-batches", count(mesh.mini_batches), "in use"],
        ["steps in flight", count(mesh.steps_in_flight), "sent to the S-part and not answered"],
        ["rebuilt", count(mesh.sequences_rebuilt), "sequences computed again because their KV was lost"],
        ["moved", count(mesh.sequences_moved), "sequences handed over to another place"],
        ["paused", count(mesh.sequences_preempted), "sequences paused because pages ran out"],
        ["open requests", count(gateway.requests_running + gateway.requests_waiting), "of this gateway"],
        ["up", duration(mesh.up_us), "since the scheduler started"],
    ]);
}

function stateOf(place) {
    return !place.up ? ["bad", "down"] : place.draining ? ["warn", "draining"] : ["good", "up"];
}

function serviceRows(gateway, mesh) {
    const rows = [{ name: "gateway", state: ["good", "up"], text: `version ${gateway.version}` }];
    rows.push({ name: "scheduler", state: mesh ? ["good", "up"] : ["bad", "away"], text: mesh ? `up ${duration(mesh.up_us)}` : gateway.reason });
    for (const stage of mesh?.stages ?? [])
        rows.push({ name: stage.name || "s-part", state: stage.up ? ["good", "up"] : ["bad", "down"],
            text: `layers ${stage.first_layer} to ${stage.first_layer + stage.layer_count - 1}, ${stage.numeric_level || "level unknown"}` });
    if (mesh && !mesh.stages.length) rows.push({ name: "s-part", state: ["bad", "down"], text: "no s-part is registered" });
    for (const place of mesh?.places ?? [])
        if (place.kind === "kv_worker")
            rows.push({ name: place.name, state: stateOf(place), text: (place.silent_ms < 1500 ? "heard just now" : `last heard ${duration(place.silent_ms * 1e3)} ago`) + (place.times_lost ? `, lost ${place.times_lost === 1 ? "once" : `${place.times_lost} times`}` : "") +
                (place.shares_cores ? ", on the s-part's cores" : "") });
    return rows;
}

function showServices(gateway, mesh) {
    const rows = new Map(serviceRows(gateway, mesh).map((row) => [row.name, row]));
    keyed(byId("services"), [...rows.keys()],
        (name) => element("li", {}, element("span", { class: "pill" }), element("strong", {}, name), element("span", { class: "soft" })),
        (node, name) => {
            const { state, text } = rows.get(name), [pill, , soft] = node.children;
            node.dataset.state = state[1];
            pill.className = `pill ${state[0]}`;
            setText(pill, state[1]);
            setText(soft, text);
        });
}

function placeName(place) {
    return place.kind === "local_pool" ? "local pool" : place.name;
}

function placeFigures(place) {
    const busy = history.shares((look) => look.places.find((p) => p.index === place.index && p.name === place.name)?.attend_us).at(-1)?.share ?? null;
    return `${count(place.sequences)} sequences, busy ${percent(busy)}, ` + (place.token_us ? `${duration(place.token_us)} a token read` : "no time measured");
}

function fillPlace(node, place, mesh, most) {
    const [word, text] = stateOf(place), [head, load, pages] = node.children;
    head.firstElementChild.className = `pill ${word}`;
    setText(head.firstElementChild, text);
    setText(head.children[1], placeName(place));
    setText(head.children[2], placeFigures(place));
    node.dataset.state = text;
    load.replaceChildren(...place.load_tokens.slice(0, Math.max(1, mesh.mini_batches)).map((tokens, m) => {
        const limit = mesh.load_limit_tokens[m];
        return element("div", { class: "bar-row" }, element("span", {}, `load ${m}`),
            bar([{ share: tokens / most, kind: "r-part" }], `load of mini-batch ${m}: ${count(tokens)} tokens`),
            element("span", { class: "bar-text" }, count(tokens) + (limit ? ` of ${count(limit)}` : "")));
    }));
    pages.replaceChildren(element("span", {}, "pages"),
        bar([{ share: place.pages_used / (place.pages_total || 1), kind: "s-part" }, { share: place.pages_cached / (place.pages_total || 1), kind: "cache" }],
            `${count(place.pages_used)} pages used, ${count(place.pages_cached)} kept for prompts that begin alike, of ${count(place.pages_total)}`),
        element("span", { class: "bar-text" }, `${count(place.pages_used)} + ${count(place.pages_cached)} of ${count(place.pages_total)}`));
}

function showPlaces(mesh) {
    const shown = mesh.places.filter((place) => place.kind === "kv_worker" || place.pages_total);
    const most = Math.max(1, ...shown.flatMap((place) => place.load_tokens));
    keyed(byId("places"), shown.map((place) => String(place.index)),
        () => element("li", {}, element("div", { class: "place-head" }, element("span", { class: "pill" }), element("strong"), element("span", { class: "soft" })),
            element("div", { class: "loads" }), element("div", { class: "bar-row" })),
        (node, key) => fillPlace(node, shown.find((place) => String(place.index) === key), mesh, most));
}

function showLanes(mesh) {
    const rows = mesh.stages.map((stage, i) => lane(stage.name || "s-part", "s-part", history.shares((look) => look.stages[i]?.busy_us), mesh.now_us));
    for (const place of mesh.places.filter((one) => one.up || one.kind === "kv_worker").slice(0, LANES_MAX))
        rows.push(lane(placeName(place), "r-part",
            history.shares((look) => look.places.find((p) => p.index === place.index && p.name === place.name)?.attend_us), mesh.now_us));
    byId("lanes").replaceChildren(...rows);
}

function mean(list, of) {
    return list.length ? list.reduce((sum, one) => sum + of(one), 0) / list.length : 0;
}

function showSteps(mesh) {
    const list = mesh.recent_steps, names = new Map(mesh.places.map((place) => [place.index, placeName(place)]));
    const [s, r, other] = [0, 1, 2].map((part) => duration(mean(list, (step) => partsOf(step)[part])));
    setText(byId("steps-text"), list.length
        ? `The latest ${list.length}, on average ${duration(mean(list, (step) => step.total_us))}: ${s} S-part, ${r} waiting for attention, ` +
          `${other} for its turn; ${mean(list, (step) => step.decode_rows + step.prompt_rows).toFixed(1)} rows`
        : "No step has run yet.");
    steps(byId("steps"), list, (index) => names.get(index) ?? `place ${index}`);
}

function showPlan(mesh) {
    const plan = mesh.plan, tokens = history.rate((look) => look.generated_tokens);
    const s = history.shares((look) => look.stages[0]?.busy_us).at(-1)?.share ?? null;
    const workers = mesh.places.filter((place) => place.up && (plan?.workers ? place.kind === "kv_worker" : place.kind === "local_pool"));
    const busy = workers.map((place) => history.shares((look) => look.places.find((p) => p.index === place.index)?.attend_us).at(-1)?.share ?? 0);
    const recent = mesh.recent_steps, predicted = history.mean((look) => look.predicted_us, (look) => look.measured_us);
    const step = recent.length ? mean(recent, (one) => one.total_us) : null;
    const rows = [
        ["tokens/s", plan ? plan.tokens_per_second.toFixed(1) : "–", "–", tokens === null ? "–" : tokens.toFixed(1)],
        ["a step", duration(plan?.step_us), predicted !== null && step !== null ? duration(predicted * step) : "–", duration(step)],
        ["S-part busy", percent(plan?.s_part_busy), "–", percent(s)],
        ["R-part busy", percent(plan?.r_part_busy), "–", busy.length ? percent(mean(busy, (share) => share)) : "–"],
        ["error of a step's prediction", "–", percent(mesh.prediction_error_ratio), "–"],
    ];
    const keep = plan?.s_part_layer_us > 0 && plan.workers ? Math.ceil((plan.workers * plan.r_part_layer_us) / plan.s_part_layer_us) : null;
    setText(byId("plan-text"), plan
        ? `For ${count(plan.batch)} sequences with prompts of ${count(plan.prompt_tokens)} and ${count(plan.generated_tokens)} generated tokens ` +
          `${plan.workers ? `on ${count(plan.workers)} ${plan.workers === 1 ? "worker" : "workers"}` : "in the local pool"}. ` +
          `${plan.bound_by} binds` + (keep !== null ? `; ${count(keep)} such ${keep === 1 ? "worker" : "workers"} would keep up with the S-part.` : ".")
        : "A prediction needs running sequences, and services that measured themselves at their start (--calibrate).");
    keyed(byId("plan"), rows.map(([name]) => name),
        (name) => element("tr", {}, element("th", { scope: "row" }, name), element("td"), element("td"), element("td")),
        (node, name) => rows.find((row) => row[0] === name).slice(1).forEach((text, i) => setText(node.children[i + 1], text)));
}

function showEvents(mesh) {
    const list = [...mesh.events].reverse(), found = new Map(list.map((event) => [`${mesh.scheduler_incarnation}.${event.number}`, event]));
    keyed(byId("events"), [...found.keys()],
        (key) => {
            const event = found.get(key), at = new Date(event.time_us / 1e3);
            return element("li", { class: event.kind },
                element("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")), " ",
                element("strong", {}, event.name), ` ${WORDS[event.kind] ?? event.kind}` + (event.why ? `: ${event.why}` : ""));
        },
        () => {});
}

// The local pool first, then workers by name: they have registered in any order.
function sortPlaces(mesh) {
    const order = new Intl.Collator("en", { numeric: true });
    mesh.places.sort((a, b) => (a.kind === "kv_worker") - (b.kind === "kv_worker") || order.compare(a.name, b.name));
}

function show({ gateway, mesh }) {
    if (mesh) sortPlaces(mesh);
    showState(gateway, mesh);
    showServices(gateway, mesh);
    document.body.classList.toggle("stale", !mesh);
    if (!mesh || !history.add(mesh)) return;
    for (const part of [showPlaces, showLanes, showSteps, showPlan, showEvents]) part(mesh);
    showNow(mesh, gateway);
    document.body.dataset.looks = String(history.looks.length);
}

// --- asking --------------------------------------------------------------------------------------------------------

// Whoever is not on the gateway's machine needs a key of --admin-key-file. It is kept until the page is left.
function askForKey() {
    byId("state").className = "bad";
    setText(byId("state"), adminKey ? "The gateway does not know this key." : "The mesh is shown with a key of the gateway's --admin-key-file.");
    byId("key").focus();
}

async function look() {
    timer = null;
    try {
        const headers = adminKey ? { Authorization: `Bearer ${adminKey}` } : {};
        const reply = await fetch(STATE, { headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS) });
        byId("key-form").hidden = reply.status !== 401;
        if (reply.status === 401) {
            askForKey();
            return;
        }
        if (!reply.ok) throw new Error(`status ${reply.status}`);
        show(await reply.json());
        wait = EVERY_MS;
    } catch {
        byId("state").className = "bad";
        setText(byId("state"), "The gateway does not answer. What follows is what it said last.");
        document.body.classList.add("stale");
        wait = Math.min(2 * wait, EVERY_MOST_MS);
    }
    if (!document.hidden) timer = setTimeout(look, wait);
}

byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    adminKey = byId("key").value.trim();
    look();
});
document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
        clearTimeout(timer);
        timer = null;
    } else if (timer === null) {
        look();
    }
});
look();
