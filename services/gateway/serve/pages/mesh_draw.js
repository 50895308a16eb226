// mesh_draw.js: the pictures of the mesh, as SVG and bars. Each has its figures as text beside it, or as a title.
import { element, setText, svg } from "./dom.js";
import { SPAN_US } from "./mesh_history.js";

export function count(value) {
    return Math.round(value).toLocaleString("en");
}

export function percent(share) {
    return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

export function duration(us) {
    if (us === null || us === undefined) return "–";
    if (us > 0 && us < 1) return `${(us * 1e3).toFixed(0)} ns`;
    if (us < 1000) return `${us.toFixed(us < 10 ? 2 : 0)} µs`;
    if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
    if (us < 60e6) return `${(us / 1e6).toFixed(1)} s`;
    const minutes = Math.floor(us / 60e6);
    return minutes < 60 ? `${minutes} min` : minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

// A bar whose parts are shares of the whole: [{ share, kind, title }].
export function bar(parts, label) {
    const picture = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label });
    let at = 0;
    for (const part of parts) {
        const width = Math.max(0, Math.min(100 - at, part.share * 100));
        if (width > 0) picture.append(svg("rect", { x: at, y: 0, width, height: 8, class: part.kind }));
        at += width;
    }
    return picture;
}

// One lane of the last minute: a column for each look, as high as the busy share.
export function lane(name, kind, shares, now_us) {
    const last = shares.at(-1)?.share ?? null;
    const picture = svg("svg", { class: "lane", viewBox: "0 0 600 24", preserveAspectRatio: "none", role: "img", "aria-label": `${name}: busy ${percent(last)} now` });
    picture.append(svg("line", { x1: 0, y1: 23.5, x2: 600, y2: 23.5, class: "ground" }));
    for (const { from, to, share } of shares) {
        const x = 600 - ((now_us - from) / SPAN_US) * 600, width = Math.max(1, ((to - from) / SPAN_US) * 600 - 1);
        if (share > 0) picture.append(svg("rect", { x, y: 24 - 24 * share, width, height: 24 * share, class: kind }));
    }
    return element("div", { class: "lane-row" }, element("span", { class: "lane-name" }, name), picture, element("span", { class: "lane-now" }, percent(last)));
}

const ROW = 34, STEPS_WIDTH = 1000;

// What a step's time went into: [computing, waiting for attention, waiting while the S-part was at another mini-batch], in microseconds.
export function partsOf(step) {
    const s = Math.min(step.s_part_us, step.total_us), r = Math.min(step.r_part_us, step.total_us - s);
    return [s, r, step.total_us - s - r];
}

function stepTitle(step, place) {
    const [s, r, other] = partsOf(step).map(duration);
    const places = step.places.map((time) => `${place(time.index)} ${duration(time.attend_us || time.r_part_us)}`).join(", ");
    return `step ${step.step}, mini-batch ${step.mini_batch}: ${duration(step.total_us)}, of that ${s} S-part, ${r} waiting for attention, ${other} for its turn; ` +
        `${step.decode_rows} decode rows, ${step.prompt_rows} of prompts` + (places ? `; ${places}` : "");
}

function stepBar(step, x, y, tall) {
    const left = x(step.answered_us - step.total_us), width = Math.max(1, x(step.answered_us) - left - .5), parts = partsOf(step);
    const group = svg("g", {});
    let bottom = y + tall;
    parts.forEach((us, i) => {
        const height = step.total_us ? (tall * us) / step.total_us : 0;
        bottom -= height;
        if (height > 0) group.append(svg("rect", { x: left, y: bottom, width, height, class: ["s-part", "r-part", "cache"][i] }));
    });
    return group;
}

// The latest steps, a row for each mini-batch. A bar is as long as the step ran; from below it shows the S-part's share, the wait for
// attention, and the time in which the S-part was at another mini-batch.
export function steps(holder, list, place) {
    const rows = [...new Set(list.map((step) => step.mini_batch))].sort((a, b) => a - b);
    holder.replaceChildren();
    if (!list.length) return;
    const from = Math.min(...list.map((step) => step.answered_us - step.total_us)), to = Math.max(...list.map((step) => step.answered_us));
    const span = Math.max(1, to - from), x = (us) => ((us - from) / span) * STEPS_WIDTH;
    const picture = svg("svg", { viewBox: `0 0 ${STEPS_WIDTH} ${rows.length * ROW}`, height: rows.length * ROW, preserveAspectRatio: "none", role: "img",
        "aria-label": `${list.length} steps over ${duration(span)}` });
    for (const step of list) {
        const bar = stepBar(step, x, rows.indexOf(step.mini_batch) * ROW + 4, ROW - 8);
        bar.append(svg("title", {}, stepTitle(step, place)));
        picture.append(bar);
    }
    const names = element("div", { class: "step-names", "aria-hidden": "true" }, ...rows.map((row) => element("span", {}, `mini-batch ${row}`)));
    holder.append(names, picture, element("p", { class: "scale" }, element("span", {}, `${duration(span)} ago`), element("span", {}, "the latest")));
}

// Makes the children of a list those that the keys name, in their order. make(key) returns a node; fill(node, key) sets what changes.
export function keyed(holder, keys, make, fill) {
    const there = new Map([...holder.children].map((node) => [node.dataset.key, node]));
    const wanted = keys.map((key) => {
        const node = there.get(key) ?? make(key);
        node.dataset.key = key;
        fill(node, key);
        return node;
    });
    if (wanted.length !== holder.children.length || wanted.some((node, i) => holder.children[i] !== node)) holder.replaceChildren(...wanted);
}

// A list of figures: [[name, text, explanation]].
export function figures(holder, list) {
    keyed(holder, list.map(([name]) => name),
        (name) => element("div", {}, element("dt", {}, name), element("dd")),
        (node, name) => {
            const [, text, explanation] = list.find((one) => one[0] === name);
            setText(node.lastElementChild, text);
            if (explanation) node.title = explanation;
        });
}
