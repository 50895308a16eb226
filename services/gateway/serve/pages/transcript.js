// transcript.js: messages as they are shown: text, what it took, and what can be done with each.
import { copyText, element } from "./dom.js";
import * as markdown from "./markdown.js";

export function seconds(ms) {
    return ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`;
}

// stats: { first_ms, tokens, rate, finish, stop }. What is not known is left out.
function statsText(stats) {
    const parts = [];
    if (stats.first_ms !== undefined) parts.push(`first token ${seconds(stats.first_ms)}`);
    if (stats.rate) parts.push(`${stats.rate.toFixed(1)} tokens/s`);
    if (stats.tokens) parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
    if (stats.finish === "stopped") parts.push("stopped");
    if (stats.finish === "length") parts.push(stats.stop === "deadline" ? "ended at its deadline" : "ended at the token limit");
    if (stats.finish === "broken") parts.push("broken off");
    return parts.join(" · ");
}

function showText(message, body) {
    if (message.role === "assistant") markdown.update(body, message.content);
    else body.textContent = message.content;
}

function button(label, action) {
    return element("button", { type: "button", class: "quiet", onclick: action }, label);
}

// A message on the page. actions: { edit(index, text), regenerate(index), busy() }.
export class MessageView {
    constructor(message, index, actions) {
        this.message = message;
        this.index = index;
        this.actions = actions;
        const mine = message.role === "user";
        this.body = element("div", { class: mine ? "text" : "text prose" });
        this.stats = element("p", { class: "stats" });
        this.tools = element("div", { class: "tools" });
        this.node = element("article", { class: `message ${message.role}`, "aria-label": mine ? "You" : "The model" },
            element("h3", { class: "hidden" }, mine ? "You" : "The model"), this.body, this.stats, this.tools);
        const copy = button("Copy", () => copyText(this.message.content, copy));
        this.tools.append(copy, mine ? button("Edit", () => this.edit()) : button("Regenerate", () => actions.regenerate(this.index)));
        this.refresh();
    }

    refresh() {
        showText(this.message, this.body);
        this.stats.textContent = this.message.stats ? statsText(this.message.stats) : "";
    }

    // While tokens come: the text, and the rate so far.
    stream(live) {
        showText(this.message, this.body);
        this.stats.textContent = statsText(live);
    }

    setBusy(busy) {
        this.node.classList.toggle("busy", busy);
        if (busy) this.node.setAttribute("aria-busy", "true");
        else this.node.removeAttribute("aria-busy");
    }

    edit() {
        if (this.actions.busy()) return;
        const field = element("textarea", { "aria-label": "Edit the message", rows: Math.min(12, this.message.content.split("\n").length + 1) });
        const close = () => {
            form.remove();
            this.body.hidden = this.tools.hidden = false;
        };
        const cancel = () => {
            close();
            this.tools.querySelectorAll("button")[1].focus();
        };
        const save = () => {
            if (!field.value.trim()) return;
            close();
            this.actions.edit(this.index, field.value);
        };
        const form = element("div", { class: "edit" }, field, element("div", { class: "row" },
            element("button", { type: "button", onclick: save }, "Send"), button("Cancel", cancel)));
        field.value = this.message.content;
        field.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                save();
            } else if (event.key === "Escape") {
                event.stopPropagation();
                cancel();
            }
        });
        this.body.hidden = this.tools.hidden = true;
        this.node.append(form);
        field.focus();
    }
}

// Says what went wrong and what can be done. retryAfter: the button waits so many seconds. Returns the node.
export function problem(text, hint, retryAfter, retry) {
    const again = element("button", { type: "button", onclick: () => { clearInterval(timer); retry(); } }, "Try again");
    let left = retryAfter, timer = null;
    const tick = () => {
        again.disabled = left > 0;
        again.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
        if (left-- <= 0) clearInterval(timer);
    };
    if (retryAfter > 0) timer = setInterval(tick, 1000);
    tick();
    return element("div", { class: "problem", role: "alert" }, element("p", {}, text), ...(hint ? [element("p", { class: "note" }, hint)] : []), again);
}
