// dom.js: elements from plain values. Text always becomes a text node, so nothing that a person or a model wrote is read as HTML.

// element("button", { class: "quiet", type: "button", onclick: f }, "Copy")
export function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") made.addEventListener(name.slice(2), value);
        else if (value === true) made.setAttribute(name, "");
        else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
}

export function byId(id) {
    return document.getElementById(id);
}

export function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

export async function copyText(text, button) {
    const label = button.textContent;
    let done = "Copied";
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        done = "Not allowed";
    }
    button.textContent = done;
    setTimeout(() => { button.textContent = label; }, 1500);
}
