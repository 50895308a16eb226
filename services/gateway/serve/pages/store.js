// store.js: conversations, in this browser's localStorage: one entry each, so that saving one is not writing all.
//
// A conversation: { id, title, created, changed, messages: [{ role, content, stats? }], params }. The gateway keeps nothing of it.
const PREFIX = "fastdecode.chat.";
const MESSAGES_MAX = 2000;

function isText(value) {
    return typeof value === "string";
}

// What is stored may be of another version, or somebody else's: it is taken only if it is a conversation.
function checked(value) {
    if (!value || !isText(value.id) || !Array.isArray(value.messages)) return null;
    const messages = value.messages.filter((m) => m && (m.role === "user" || m.role === "assistant") && isText(m.content)).slice(0, MESSAGES_MAX);
    return {
        id: value.id,
        title: isText(value.title) ? value.title : "",
        created: Number(value.created) || 0,
        changed: Number(value.changed) || 0,
        messages,
        params: value.params && typeof value.params === "object" ? value.params : {},
    };
}

export function list() {
    const found = [];
    try {
        for (let i = 0; i < localStorage.length; i++) {
            const key = localStorage.key(i);
            if (!key.startsWith(PREFIX)) continue;
            const one = load(key.slice(PREFIX.length));
            if (one) found.push(one);
        }
    } catch { /* storage is switched off: there is only what is on the page */ }
    return found.sort((a, b) => b.changed - a.changed);
}

export function load(id) {
    try {
        return checked(JSON.parse(localStorage.getItem(PREFIX + id)));
    } catch {
        return null;
    }
}

// Returns whether it was kept: storage may be full, or switched off.
export function save(conversation) {
    try {
        localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
        return true;
    } catch {
        return false;
    }
}

export function remove(id) {
    try {
        localStorage.removeItem(PREFIX + id);
    } catch { /* it was not there */ }
}

export function create(params) {
    const now = Date.now();
    const random = crypto.getRandomValues(new Uint32Array(2));
    return { id: `${now.toString(36)}-${random[0].toString(36)}${random[1].toString(36)}`, title: "", created: now, changed: now, messages: [], params: { ...params } };
}

export function titleOf(conversation) {
    const first = conversation.messages.find((m) => m.role === "user");
    const text = first ? first.content.trim().split("\n")[0] : "";
    return text.length > 60 ? text.slice(0, 59) + "…" : text || "New chat";
}
