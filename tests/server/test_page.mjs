// The web page of llama-server on ATS0, in a real browser: it loads, a message is typed and
// sent, and the whole answer appears. A screenshot stays in the build folder.

import { mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { check, checkEqual, run } from "./lib/check.mjs";
import { sleep, startBoth, stopAll } from "./lib/server.mjs";
import { keptFolder, setting, shippedModel, work } from "./lib/setting.mjs";
import { checkBothSides } from "./lib/stats.mjs";

const answerTokens = 24;
const question = "Tell me about the sea";
const pageLimitMs = 45_000;

let browser;

async function openBrowser() {
    const require = createRequire(path.join(setting.browserPackages, "package.json"));
    const { chromium } = require("playwright-core");
    browser = await chromium.launchPersistentContext(mkdtempSync(path.join(work, "browser-")), {
        executablePath: setting.chromium,
        headless: true,
        timeout: pageLimitMs,
        args: [
            ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
            ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
        ],
    });
    browser.setDefaultTimeout(pageLimitMs);
    return browser.pages()[0] ?? (await browser.newPage());
}

// Everything the page complains about. One answer is no fault: the page asks which tools the
// server may run, and a server started without --tools refuses.
function watch(page, server) {
    const faults = [];
    const refusal = `${server.url}/tools`;
    page.on("console", (message) => {
        if (message.type() !== "error" || message.location().url === refusal) return;
        faults.push(`console: ${message.text()} (${message.location().url})`);
    });
    page.on("pageerror", (error) => faults.push(`page error: ${error.stack ?? error}`));
    page.on("requestfailed", (request) =>
        faults.push(`request: ${request.url()}: ${request.failure()?.errorText}`),
    );
    page.on("response", (response) => {
        if (response.status() < 400 || (response.status() === 403 && response.url() === refusal)) return;
        faults.push(`HTTP ${response.status()}: ${response.url()}`);
    });
    return faults;
}

// Letters only: the page shows the answer as formatted text.
const letters = (text) => text.replace(/[^\p{L}]/gu, "");

const contentOf = (stream) =>
    stream
        .split("\n")
        .filter((line) => line.startsWith("data: {"))
        .map((line) => JSON.parse(line.slice("data: ".length)).choices?.[0]?.delta?.content ?? "")
        .join("");

await run(
    150,
    async () => {
        const model = shippedModel;
        const options = ["-m", model, "-np", "4", "-c", "2048", "--temp", "0", "-n", String(answerTokens)];
        const { cpu, ats } = await startBoth("page", options);
        const page = await openBrowser();
        const faults = watch(page, ats);

        const opened = await page.goto(ats.url, { waitUntil: "load" });
        const input = page.locator("textarea").first();
        await input.waitFor();
        const title = await page.title();
        check(opened.status() === 200 && /llama/i.test(title), `the page loads: "${title}"`);

        await input.fill(question);
        const asking = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
        await input.press("Enter");
        const request = await asking;
        const response = await request.response();
        const stream = await response.text();
        check(stream.includes("data: [DONE]"), "the answer is complete", stream);

        // The same request, as the page wrote it, to the server on the CPU alone.
        const asked = JSON.parse(request.postData());
        const expected = contentOf(await (await cpu.fetch("/v1/chat/completions", asked)).text());
        const shown = async () => letters(await page.locator("body").innerText());
        const end = Date.now() + pageLimitMs;
        while (!(await shown()).includes(letters(expected)) && Date.now() < end) await sleep(100);
        const text = await shown();
        check(
            letters(expected).length > answerTokens && text.includes(letters(expected)),
            `the page shows the CPU's answer: "${expected}"`,
            text,
        );
        check(text.includes(letters(question)), `the page shows the question: "${question}"`, text);
        await page.screenshot({ path: path.join(keptFolder(), "llama-server-page.png") });
        check(faults.length === 0, "the page reports no error", ...faults);

        await browser.close();
        checkEqual({ code: 0, signal: null }, await ats.stop(), "the server ends cleanly");
        checkBothSides(ats.statsFile, "page");
    },
    async () => {
        await browser?.close().catch(() => {});
        await stopAll();
    },
);
