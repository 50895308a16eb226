// chat.js: the chat: conversations, sending, stopping, answering again.
//
// One answer comes at a time. What is shown is what is stored: a conversation is saved when a message is sent, when its answer ends, and at
// most once a second while it comes.
import * as api from "./api.js";
import { byId, element, setText } from "./dom.js";
import * as params from "./params.js";
import * as store from "./store.js";
import { MessageView, problem } from "./transcript.js";

const SAVE_EVERY_MS = 1000, RATE_LEAST_S = 0.02;
const input = byId("input"), log = byId("log");
// follow: the end of the messages is in view, and stays there.
const state = { conversation: store.create(params.defaults()), views: [], abort: null, model: null, follow: true };

// --- the page ------------------------------------------------------------------------------------------------------

function say(text) {
    setText(byId("status"), text);
}

function isBusy() {
    return state.abort !== null;
}

function setBusy(abort) {
    state.abort = abort;
    byId("send").hidden = abort !== null;
    byId("stop").hidden = abort === null;
    document.body.classList.toggle("answering", abort !== null);
}

function isAtEnd() {
    return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function toEnd() {
    log.scrollTop = log.scrollHeight;
    state.follow = true;
}

function fitInput() {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, 240)}px`;
}

function showWelcome() {
    log.append(element("div", { class: "welcome" }, element("p", {}, "Ask the model something."),
        element("p", { class: "note" }, "It answers here, token by token. Parameters such as the system prompt and the temperature are behind the button above.")));
}

function showMessages() {
    log.setAttribute("aria-live", "off"); // what was said before is not read out again
    requestAnimationFrame(() => log.setAttribute("aria-live", "polite"));
    log.replaceChildren();
    state.views = state.conversation.messages.map((message, index) => new MessageView(message, index, actions));
    log.append(...state.views.map((view) => view.node));
    if (!state.views.length) showWelcome();
    if (state.conversation.messages.at(-1)?.role === "user") log.append(unanswered());
    toEnd();
}

// A question whose answer was never asked for, or never came.
function unanswered() {
    return element("div", { class: "unanswered" }, element("button", { type: "button", onclick: () => answer() }, "Answer this"));
}

function showTitle() {
    const title = store.titleOf(state.conversation);
    setText(byId("title"), title);
    document.title = `${title === "New chat" ? "Chat" : title} · FastDecode`;
}

function showList() {
    const rows = store.list().map((one) => {
        const title = store.titleOf(one), current = one.id === state.conversation.id;
        return element("li", {},
            element("button", { type: "button", class: "chat-name", "aria-current": current ? "true" : null, onclick: () => open(one.id) }, title),
            element("button", { type: "button", class: "quiet", "aria-label": `Delete ${title}`, onclick: () => forget(one, title) }, "Delete"));
    });
    byId("chat-list").replaceChildren(...rows);
}

function keep() {
    state.conversation.changed = Date.now();
    state.conversation.title = store.titleOf(state.conversation);
    if (!store.save(state.conversation)) say("This browser's storage is full or switched off: the conversation is not kept. Deleting older ones makes room.");
    showList();
    showTitle();
}

// --- conversations -------------------------------------------------------------------------------------------------

function show(conversation) {
    state.conversation = conversation;
    params.show(conversation.params);
    showMessages();
    showTitle();
    showList();
    closeDrawer();
}

function open(id) {
    const found = store.load(id);
    if (!found || id === state.conversation.id) return closeDrawer();
    stop();
    show(found);
    input.focus();
}

function begin() {
    stop();
    show(store.create(params.defaults()));
    input.focus();
}

function forget(conversation, title) {
    if (!confirm(`Delete “${title}”? It cannot be brought back.`)) return;
    store.remove(conversation.id);
    if (conversation.id === state.conversation.id) begin();
    else showList();
}

function download(name, value) {
    const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
    const link = element("a", { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// --- asking --------------------------------------------------------------------------------------------------------

function requestBody(conversation) {
    const system = conversation.params.system ? [{ role: "system", content: conversation.params.system }] : [];
    const messages = conversation.messages.filter((m) => m.role === "user" || m.content).map(({ role, content }) => ({ role, content }));
    return { model: state.model?.name ?? "default", messages: [...system, ...messages], ...params.body(conversation.params) };
}

// What is known of an answer's speed: time to the first token, then tokens a second after it.
class Pace {
    constructor() {
        this.began = performance.now();
        this.first = this.last = 0;
        this.pieces = 0;
    }

    piece() {
        this.last = performance.now();
        if (!this.pieces++) this.first = this.last;
    }

    // tokens: as the server counts them, once it has said so; until then a piece counts as one.
    stats(tokens = this.pieces) {
        if (!this.pieces) return {};
        const took = (this.last - this.first) / 1000;
        return { first_ms: this.first - this.began, tokens, rate: tokens > 1 && took > RATE_LEAST_S ? (tokens - 1) / took : undefined };
    }
}

// Shows what comes at most once a frame, and saves it now and then.
function streamer(conversation, message, view, pace) {
    let due = false, saved = performance.now();
    return (piece) => {
        pace.piece();
        message.content += piece;
        if (due) return;
        due = true;
        requestAnimationFrame(() => {
            due = false;
            if (message.stats) return; // it has ended meanwhile
            view.stream(pace.stats());
            if (state.follow) toEnd();
            if (performance.now() - saved < SAVE_EVERY_MS) return;
            saved = performance.now();
            store.save(conversation);
        });
    };
}

function explain(error) {
    switch (error.status) {
    case 0: return [error.message, ""];
    case 401: return ["The server needs an API key, or does not know this one.", ""];
    case 403: return ["This API key may not ask for that.", error.message];
    case 429: return ["The server takes no more requests from you right now.", error.message];
    case 503: return ["The model is not ready yet.", error.message];
    default: return ["The server could not answer this.", error.message];
    }
}

function showProblem(error) {
    const [text, hint] = explain(error);
    log.append(problem(text, hint, error.retryAfter, () => answer()));
    toEnd();
    if (error.status === 401) askForKey();
}

// Asks for the answer to what the conversation ends with.
async function answer() {
    const conversation = state.conversation, abort = new AbortController(), pace = new Pace();
    const message = { role: "assistant", content: "" };

    if (isBusy()) return;
    log.querySelectorAll(".problem, .welcome, .unanswered").forEach((node) => node.remove());
    const body = requestBody(conversation), view = new MessageView(message, conversation.messages.length, actions);
    conversation.messages.push(message);
    state.views.push(view);
    log.append(view.node);
    toEnd();
    setBusy(abort);
    view.setBusy(true);
    log.setAttribute("aria-busy", "true");
    say("The model answers.");
    let error = null, end = null;
    try {
        end = await api.chat(body, abort.signal, { text: streamer(conversation, message, view, pace) });
    } catch (caught) {
        error = caught;
    }
    finish({ conversation, message, view, pace, end, error, abort });
}

function finish({ conversation, message, view, pace, end, error, abort }) {
    const stopped = error?.name === "AbortError", shown = state.conversation === conversation;

    if (state.abort === abort) setBusy(null);
    message.stats = { ...pace.stats(end?.usage?.completion_tokens), finish: stopped ? "stopped" : error ? "broken" : end.finish, stop: end?.stop };
    view.setBusy(false);
    view.refresh();
    log.removeAttribute("aria-busy");
    if (shown && state.follow) toEnd();
    if (error && !stopped && !message.content) { // nothing came: the question stays, to be asked again
        conversation.messages.pop();
        view.node.remove();
        if (shown) state.views.pop();
    }
    if (conversation.messages.length && store.load(conversation.id)) {
        conversation.changed = Date.now();
        store.save(conversation);
    }
    if (shown) {
        keep();
        say(stopped ? "Stopped." : error ? "" : "The answer is complete.");
        if (error && !stopped) showProblem(error instanceof api.ApiError ? error : new api.ApiError(0, "The answer could not be read."));
    }
}

function stop() {
    state.abort?.abort();
    setBusy(null);
}

function cutTo(count) {
    state.conversation.messages.length = count;
    showMessages();
}

function send() {
    const text = input.value;
    const given = params.read();

    if (!text.trim() || isBusy()) return;
    if (!given) {
        openParams(true);
        say("A parameter is out of its range.");
        document.querySelector("#params [aria-invalid]")?.focus();
        return;
    }
    state.conversation.params = given;
    ask(text);
    input.value = "";
    fitInput();
}

function ask(text) {
    const messages = state.conversation.messages, message = { role: "user", content: text };
    const view = new MessageView(message, messages.length, actions);
    messages.push(message);
    state.views.push(view);
    log.append(view.node);
    keep();
    answer();
}

const actions = {
    busy: isBusy,
    edit(index, text) {
        if (isBusy()) return;
        cutTo(index);
        log.querySelectorAll(".welcome").forEach((node) => node.remove());
        ask(text);
    },
    regenerate(index) {
        if (isBusy()) return;
        cutTo(index);
        answer();
    },
};

// --- panels, keys --------------------------------------------------------------------------------------------------

function openParams(show) {
    byId("params").hidden = !show;
    byId("open-params").setAttribute("aria-expanded", String(show));
}

function openDrawer() {
    const shown = document.body.classList.toggle("drawer");
    byId("open-chats").setAttribute("aria-expanded", String(shown));
    if (shown) byId("new-chat").focus();
}

function closeDrawer() {
    document.body.classList.remove("drawer");
    byId("open-chats").setAttribute("aria-expanded", "false");
}

function askForKey() {
    const dialog = byId("key-dialog");
    byId("key").value = api.apiKey();
    if (!dialog.open) dialog.showModal();
}

function useKey() {
    api.setApiKey(byId("key").value.trim());
    byId("key-dialog").close();
    findModel();
    input.focus();
}

async function findModel() {
    try {
        state.model = await api.model();
        setText(byId("model"), state.model.name);
    } catch (error) {
        setText(byId("model"), error.status === 401 ? "API key needed" : "not reachable");
        if (error.status === 401) askForKey();
    }
}

function onKey(event) {
    if (event.key !== "Escape" || byId("key-dialog").open) return;
    if (isBusy()) stop();
    else if (document.body.classList.contains("drawer")) {
        closeDrawer();
        byId("open-chats").focus();
    } else if (!byId("params").hidden) {
        openParams(false);
        byId("open-params").focus();
    }
}

function connect() {
    const on = (id, action) => byId(id).addEventListener("click", action);

    on("send", send);
    on("stop", () => { stop(); input.focus(); });
    on("new-chat", begin);
    on("open-chats", openDrawer);
    on("open-params", () => openParams(byId("params").hidden));
    on("export", () => download(`chat-${state.conversation.id}.json`, state.conversation));
    on("export-all", () => download("chats.json", store.list()));
    on("delete-all", () => {
        if (!confirm("Delete all conversations? They cannot be brought back.")) return;
        store.list().forEach((one) => store.remove(one.id));
        begin();
    });
    on("reset-params", () => {
        params.show({});
        byId("params").dispatchEvent(new Event("input"));
    });
    on("set-key", askForKey);
    on("key-save", useKey);
    on("key-cancel", () => byId("key-dialog").close());
    byId("key").addEventListener("keydown", (event) => { if (event.key === "Enter") useKey(); });
    input.addEventListener("input", fitInput);
    input.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        send();
    });
    document.addEventListener("keydown", onKey);
    log.addEventListener("scroll", () => { state.follow = isAtEnd(); });
    new ResizeObserver(() => { if (state.follow) toEnd(); }).observe(log);
    addEventListener("storage", showList);
}

params.build((given) => { state.conversation.params = given; });
connect();
show(store.list()[0] ?? state.conversation);
findModel();
input.focus();
