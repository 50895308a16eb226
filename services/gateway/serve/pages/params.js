// params.js: the parameters of a conversation: a form, whose empty fields leave the choice to the server.
import { byId, element } from "./dom.js";

const KEY = "fastdecode.params";

// The API's limits (services/gateway/api/schema/schema.c). step "1": whole numbers.
export const FIELDS = [
    { name: "temperature", label: "Temperature", min: 0, max: 2, step: "0.05", hint: "0 always takes the likeliest token" },
    { name: "top_p", label: "Top p", min: 0.01, max: 1, step: "0.01", hint: "the likeliest tokens that add up to this" },
    { name: "top_k", label: "Top k", min: 0, max: 100000, step: "1", hint: "so many of the likeliest; 0: all" },
    { name: "min_p", label: "Min p", min: 0, max: 1, step: "0.01", hint: "as a share of the likeliest one" },
    { name: "max_tokens", label: "Max tokens", min: 1, max: 1000000, step: "1", hint: "the longest answer" },
    { name: "seed", label: "Seed", min: 0, max: 9007199254740991, step: "1", hint: "the same seed gives the same answer" },
    { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "0.1", hint: "against tokens that were there" },
    { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "0.1", hint: "the more often, the more" },
    { name: "repetition_penalty", label: "Repetition penalty", min: 0.1, max: 10, step: "0.05", hint: "1 is none" },
];

export function defaults() {
    try {
        const stored = JSON.parse(localStorage.getItem(KEY));
        return stored && typeof stored === "object" ? stored : {};
    } catch {
        return {};
    }
}

function remember(params) {
    try {
        localStorage.setItem(KEY, JSON.stringify(params));
    } catch { /* they hold for this conversation */ }
}

// Makes the fields. changed(params) is called with what is in the form, if all of it is allowed.
export function build(changed) {
    const holder = byId("params-fields");
    for (const field of FIELDS)
        holder.append(element("div", { class: "field" },
            element("label", { for: `param-${field.name}` }, field.label),
            element("input", { id: `param-${field.name}`, type: "number", inputmode: "decimal", min: field.min, max: field.max, step: field.step,
                placeholder: "default", "aria-describedby": `hint-${field.name}` }),
            element("small", { id: `hint-${field.name}` }, field.hint)));
    byId("params").addEventListener("input", () => {
        const params = read();
        if (!params) return;
        remember(params);
        changed(params);
    });
}

export function show(params) {
    byId("param-system").value = params.system ?? "";
    byId("param-stop").value = Array.isArray(params.stop) ? params.stop.join("\n") : "";
    byId("param-flex").checked = params.service_tier === "flex";
    byId("param-eos").checked = params.ignore_eos === true;
    for (const field of FIELDS) byId(`param-${field.name}`).value = params[field.name] ?? "";
}

// Returns what is in the form; null if a field is out of its range.
export function read() {
    const params = {};
    const system = byId("param-system").value, stop = byId("param-stop").value.split("\n").filter((line) => line !== "").slice(0, 4);
    if (system.trim()) params.system = system;
    if (stop.length) params.stop = stop;
    if (byId("param-flex").checked) params.service_tier = "flex";
    if (byId("param-eos").checked) params.ignore_eos = true;
    for (const field of FIELDS) {
        const input = byId(`param-${field.name}`);
        const { badInput, rangeUnderflow, rangeOverflow, stepMismatch } = input.validity;
        const bad = badInput || rangeUnderflow || rangeOverflow || (field.step === "1" && stepMismatch);
        if (bad) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
        if (bad) return null;
        if (input.value !== "") params[field.name] = Number(input.value);
    }
    return params;
}

// Returns the body of a request without its messages.
export function body(params) {
    const { system, ...rest } = params;
    return rest;
}
