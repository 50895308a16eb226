// markdown.js: the Markdown that models write, as DOM nodes.
//
// splitBlocks() cuts a text into blocks, renderBlock() makes nodes of one. update() makes only those blocks anew that have changed, so that
// a long answer that grows costs its last block. There is no HTML in it anywhere: tags are text. Links lead to http and https only, pictures
// are links, and depth is limited. Every scanner moves forward, so hostile text costs linear time, times the depth at most.
import { copyText, element } from "./dom.js";

const DEPTH_MAX = 6, TRIES_MAX = 2000, LOOKED_MAX = 64;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// --- blocks --------------------------------------------------------------------------------------------------------

function startsBlock(line) {
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function isTableAt(lines, at) {
    return at + 1 < lines.length && lines[at].includes("|") && lines[at + 1].includes("-") && lines[at + 1].includes("|") &&
        DELIMITERS.test(lines[at + 1]);
}

function endOfFence(lines, at, mark) {
    const closing = mark[0].repeat(mark.length);
    for (let end = at + 1; end < lines.length; end++) {
        const line = lines[end].trim();
        if (line.startsWith(closing) && [...line].every((letter) => letter === mark[0])) return end + 1;
    }
    return lines.length;
}

// A list goes on over blank lines as long as what follows is an item or is indented.
function endOfList(lines, at) {
    let end = at + 1;
    while (end < lines.length) {
        const line = lines[end];
        if (line.trim() === "") {
            const next = lines[end + 1];
            if (next === undefined || !(ITEM.test(next) || /^ {2,}\S/.test(next))) break;
        } else if (!ITEM.test(line) && !/^ /.test(line) && (lines[end - 1].trim() === "" || startsBlock(line))) {
            break;
        }
        end++;
    }
    return end;
}

function endOfBlock(lines, at) {
    const line = lines[at], fence = FENCE.exec(line);
    let end = at + 1;

    if (fence) return endOfFence(lines, at, fence[2]);
    if (HEADING.test(line) || RULE.test(line)) return end;
    if (ITEM.test(line)) return endOfList(lines, at);
    if (QUOTE.test(line)) {
        while (end < lines.length && lines[end].trim() !== "" && (QUOTE.test(lines[end]) || !startsBlock(lines[end]))) end++;
        return end;
    }
    if (isTableAt(lines, at)) {
        for (end = at + 2; end < lines.length && lines[end].includes("|") && lines[end].trim() !== "";) end++;
        return end;
    }
    while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines[end]) && !isTableAt(lines, end)) end++;
    return end;
}

// Returns the blocks as texts, each with its lines.
export function splitBlocks(text) {
    const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), blocks = [];
    for (let at = 0; at < lines.length;) {
        if (lines[at].trim() === "") {
            at++;
            continue;
        }
        const end = endOfBlock(lines, at);
        blocks.push(lines.slice(at, end).join("\n"));
        at = end;
    }
    return blocks;
}

// --- inline --------------------------------------------------------------------------------------------------------

// Returns the address of a link that may be followed, or null.
export function safeLink(target) {
    try {
        const url = new URL(target);
        return (url.protocol === "http:" || url.protocol === "https:") && url.hostname ? url.href : null;
    } catch {
        return null;
    }
}

function link(href, children) {
    return element("a", { href, rel: "noopener noreferrer", target: "_blank" }, ...children);
}

// `code`: as many backticks close it as opened it.
function codeAt(text, at) {
    let ticks = 1;
    while (text[at + ticks] === "`") ticks++;
    const mark = "`".repeat(ticks);
    for (let end = text.indexOf(mark, at + ticks); end >= 0; end = text.indexOf(mark, end)) {
        let run = ticks;
        while (text[end + run] === "`") run++;
        if (run === ticks) {
            const inner = text.slice(at + ticks, end);
            return { end: end + ticks, node: element("code", {}, /^ .*\S.* $/s.test(inner) ? inner.slice(1, -1) : inner) };
        }
        end += run;
    }
    return { end: at + ticks, node: mark };
}

function closingBracket(text, at, open, close, most) {
    let depth = 0;
    for (let end = at; end < text.length && end < at + most; end++) {
        if (text[end] === "\\") end++;
        else if (text[end] === open) depth++;
        else if (text[end] === close && --depth === 0) return end;
        else if (text[end] === "\n" && text[end + 1] === "\n") break;
    }
    return -1;
}

// [label](target) and ![label](target)
function linkAt(text, at, depth) {
    const open = text[at] === "!" ? at + 1 : at, close = closingBracket(text, open, "[", "]", 1000);
    if (close < 0 || text[close + 1] !== "(") return null;
    const end = closingBracket(text, close + 1, "(", ")", 3000);
    if (end < 0) return null;
    const target = text.slice(close + 2, end).trim().split(/\s/)[0].replace(/^<(.*)>$/, "$1"), href = safeLink(target);
    const label = text.slice(open + 1, close);
    if (!href) return { end: end + 1, node: text.slice(at, end + 1) };
    return { end: end + 1, node: link(href, open > at ? [label || target] : inline(label || target, depth + 1, false)) };
}

function addressAt(text, at) {
    const found = /^https?:\/\/[^\s<>"`]+/.exec(text.slice(at, at + 2048));
    if (!found) return null;
    let address = found[0].replace(/[.,;:!?*_~'\]]+$/, "");
    while (address.endsWith(")") && (address.match(/\(/g) || []).length < (address.match(/\)/g) || []).length) address = address.slice(0, -1);
    const href = safeLink(address);
    return href && { end: at + address.length, node: link(href, [address]) };
}

const TAGS = { "**": "strong", "__": "strong", "~~": "del", "*": "em", "_": "em" };
const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}]/u.test(letter);

// dead: marks that nothing closes any more.
function emphasisAt(text, at, depth, links, dead) {
    const mark = TAGS[text.slice(at, at + 2)] ? text.slice(at, at + 2) : text[at];
    const from = at + mark.length;
    if (!TAGS[mark] || dead.has(mark) || text[from] === undefined || /\s/.test(text[from])) return null;
    if (mark[0] === "_" && isWord(text[at - 1])) return null; // snake_case
    let end = text.indexOf(mark, from + 1);
    if (end < 0) dead.add(mark);
    for (let looked = 0; end >= 0 && looked < LOOKED_MAX; looked++, end = text.indexOf(mark, end + 1)) {
        if (mark.length === 1 && text[end + 1] === mark) {
            end++; // a part of **
            continue;
        }
        if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
        if (mark.length === 2 && text[end + 2] === mark[0]) end++; // of ***
        if (mark[0] === "_" && isWord(text[end + mark.length])) continue;
        return { end: end + mark.length, node: element(TAGS[mark], {}, ...inline(text.slice(from, end), depth + 1, links)) };
    }
    return null;
}

function specialAt(text, at, depth, links, dead) {
    const letter = text[at];
    if (letter === "`") return codeAt(text, at);
    if (links && (letter === "[" || (letter === "!" && text[at + 1] === "["))) return linkAt(text, at, depth);
    if (links && letter === "h" && !isWord(text[at - 1])) return addressAt(text, at);
    return letter === "*" || letter === "_" || letter === "~" ? emphasisAt(text, at, depth, links, dead) : null;
}

// Returns nodes and strings. links false: inside a link there is no other.
function inline(text, depth = 0, links = true) {
    const out = [], dead = new Set();
    let plain = "", at = 0, tries = 0;

    const flush = () => {
        if (plain) out.push(plain);
        plain = "";
    };
    while (at < text.length) {
        const letter = text[at];
        if (letter === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
            plain += text[at + 1];
            at += 2;
            continue;
        }
        if (letter === "\n") {
            const hard = plain.endsWith("  ");
            plain = plain.trimEnd();
            flush();
            out.push(hard ? element("br") : "\n");
            at++;
            continue;
        }
        // Each try may look through what is left of the text, so there is an end to them.
        const found = depth < DEPTH_MAX && tries < TRIES_MAX && "`[!h*_~".includes(letter) ? (tries++, specialAt(text, at, depth, links, dead)) : null;
        if (found) {
            flush();
            out.push(found.node);
            at = found.end;
        } else {
            plain += letter;
            at++;
        }
    }
    flush();
    return out;
}

// --- nodes ---------------------------------------------------------------------------------------------------------

function renderFence(lines, fence) {
    const closed = lines.length > 1 && lines[lines.length - 1].trim().startsWith(fence[2]);
    const inset = new RegExp(`^ {0,${fence[1].length}}`);
    const code = lines.slice(1, closed ? -1 : undefined).map((line) => line.replace(inset, "")).join("\n");
    const button = element("button", { type: "button", class: "quiet", onclick: () => copyText(code, button) }, "Copy");
    return element("figure", { class: "code" },
        element("figcaption", {}, element("span", {}, fence[3] || "text"), button),
        element("pre", { tabindex: "0", role: "group", "aria-label": `Code, ${fence[3] || "text"}` }, element("code", {}, code)));
}

function cells(line) {
    const out = [""];
    const body = line.trim().replace(/^\|/, "").replace(/\|$/, "");
    for (let at = 0; at < body.length; at++) {
        if (body[at] === "\\" && body[at + 1] === "|") out[out.length - 1] += body[++at];
        else if (body[at] === "|") out.push("");
        else out[out.length - 1] += body[at];
    }
    return out.map((cell) => cell.trim());
}

function renderTable(lines) {
    const heads = cells(lines[0]);
    const sides = cells(lines[1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
    const row = (tag, texts) => element("tr", {}, ...heads.map((_, i) =>
        element(tag, { class: sides[i], scope: tag === "th" ? "col" : null }, ...inline(texts[i] ?? ""))));
    return element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
        element("table", {}, element("thead", {}, row("th", heads)), element("tbody", {}, ...lines.slice(2).map((line) => row("td", cells(line))))));
}

function renderList(lines, depth) {
    const first = ITEM.exec(lines[0]), ordered = /\d/.test(first[2][0]), indent = first[1].length;
    const items = [];

    for (const line of lines) {
        const found = ITEM.exec(line);
        if (found && found[1].length <= indent + 1) {
            const width = found[1].length + found[2].length + Math.max(1, Math.min(found[3].length, 4));
            items.push({ width, lines: [found[4]] });
        } else {
            const item = items[items.length - 1], blanks = /^ */.exec(line)[0].length;
            item.lines.push(line.slice(Math.min(item.width, blanks)));
        }
    }
    const nodes = items.map((item) => {
        const blocks = splitBlocks(item.lines.join("\n"));
        return element("li", {}, ...blocks.flatMap((block, i) => (i === 0 && !startsBlock(block) ? inline(block) : renderBlock(block, depth + 1))));
    });
    return element(ordered ? "ol" : "ul", { start: ordered && parseInt(first[2], 10) !== 1 ? parseInt(first[2], 10) : null }, ...nodes);
}

// Returns the nodes of one block.
export function renderBlock(block, depth = 0) {
    const lines = block.split("\n"), fence = FENCE.exec(lines[0]), heading = HEADING.exec(lines[0]);

    if (fence) return [renderFence(lines, fence)];
    if (heading) return [element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2]))];
    if (RULE.test(lines[0])) return [element("hr")];
    if (depth >= DEPTH_MAX) return [element("p", {}, ...inline(block))];
    if (ITEM.test(lines[0])) return [renderList(lines, depth)];
    if (QUOTE.test(lines[0])) {
        const inner = lines.map((line) => line.replace(QUOTE, "")).join("\n");
        return [element("blockquote", {}, ...splitBlocks(inner).flatMap((part) => renderBlock(part, depth + 1)))];
    }
    if (isTableAt(lines, 0)) return [renderTable(lines)];
    return [element("p", {}, ...inline(block))];
}

// Makes the container show the text. Blocks that are as they were keep their nodes, and with them selection and scrolling.
export function update(container, text) {
    const blocks = splitBlocks(text), shown = container.markdownBlocks ?? [];
    let same = 0;

    while (same < blocks.length && same < shown.length && shown[same].block === blocks[same]) same++;
    for (const old of shown.splice(same)) old.nodes.forEach((node) => node.remove());
    for (const block of blocks.slice(same)) {
        const nodes = renderBlock(block);
        container.append(...nodes);
        shown.push({ block, nodes });
    }
    container.markdownBlocks = shown;
}
