// api.js: the gateway's API as the chat uses it: the model's name, and answers that are streamed.
const KEY = "fastdecode.api-key";

export function apiKey() {
    try {
        return sessionStorage.getItem(KEY) ?? "";
    } catch {
        return "";
    }
}

// It is kept for this tab, and until it is closed.
export function setApiKey(key) {
    try {
        if (key) sessionStorage.setItem(KEY, key);
        else sessionStorage.removeItem(KEY);
    } catch { /* then it is asked for again */ }
}

// What went wrong, for people. status 0: there was no answer. retryAfter: seconds, or 0.
export class ApiError extends Error {
    constructor(status, message, retryAfter = 0) {
        super(message);
        this.status = status;
        this.retryAfter = retryAfter;
    }
}

function headers() {
    const key = apiKey();
    return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refused(reply) {
    let message = `The server answered with status ${reply.status}.`;
    try {
        message = (await reply.json()).error.message || message;
    } catch { /* no JSON: a proxy answered */ }
    return new ApiError(reply.status, message, Math.min(Number(reply.headers.get("Retry-After")) || 0, 3600));
}

async function request(path, options) {
    let reply;
    try {
        reply = await fetch(path, { ...options, headers: headers(), cache: "no-store", credentials: "omit", redirect: "error" });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The server does not answer. It may be starting, or the connection is lost.");
    }
    if (!reply.ok) throw await refused(reply);
    return reply;
}

export async function model() {
    const reply = await request("/v1/models", { method: "GET" });
    const first = (await reply.json()).data[0];
    return { name: String(first.id), context: Number(first.max_model_len) || 0 };
}

// Yields the data of each server-sent event.
async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const { value, done } = await reader.read();
            if (done) return;
            const lines = (rest + value).split("\n");
            rest = lines.pop();
            for (const line of lines)
                if (line.startsWith("data:")) yield line.slice(5).trim();
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

// Streams an answer. on.text(piece) is called for each piece. Returns { finish, stop, usage }. Throws ApiError, or AbortError after
// signal's abort.
export async function chat(body, signal, on) {
    const reply = await request("/v1/chat/completions", {
        method: "POST",
        body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
        signal,
    });
    const end = { finish: null, stop: null, usage: null };
    let complete = false;
    let thinking = false; // what the model thinks is shown between marks, as it writes it
    try {
        for await (const data of events(reply.body)) {
            if (data === "[DONE]") {
                complete = true;
                break;
            }
            const event = JSON.parse(data);
            if (event.error) throw new ApiError(Number(event.error.status) || 500, String(event.error.message ?? "The answer was broken off."));
            if (event.usage) end.usage = event.usage;
            const choice = event.choices?.[0];
            const { content, reasoning_content: thought } = choice?.delta ?? {};
            if (thought) on.text(thinking ? thought : `<think>\n${thought}`);
            if (content) on.text(thinking ? `\n</think>\n\n${content}` : content);
            thinking = thought ? true : thinking && !content;
            if (choice?.finish_reason) {
                end.finish = choice.finish_reason;
                end.stop = choice.stop_reason ?? null;
            }
        }
    } catch (error) {
        if (error.name === "AbortError" || error instanceof ApiError) throw error;
        throw new ApiError(0, "The connection broke while the answer came.");
    }
    if (!complete) throw new ApiError(0, "The connection broke while the answer came.");
    return end;
}
