// A headless browser that has no network.

import { mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { setting, work } from "../server/lib/setting.mjs";

const limitMs = 45_000;

// A page, and everything that it complains about or tries to load.
export async function openPage(size = { width: 1280, height: 800 }) {
    const require = createRequire(path.join(setting.browserPackages, "package.json"));
    const { chromium } = require("playwright-core");
    const browser = await chromium.launchPersistentContext(mkdtempSync(path.join(work, "browser-")), {
        executablePath: setting.chromium,
        headless: true,
        offline: true,
        viewport: size,
        colorScheme: "light",
        timeout: limitMs,
        args: [
            ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
            ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
        ],
    });
    browser.setDefaultTimeout(limitMs);
    const page = browser.pages()[0] ?? (await browser.newPage());
    const faults = [];
    const requests = [];
    page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => faults.push(`page error: ${error.stack ?? error}`));
    page.on("requestfailed", (request) => faults.push(`request failed: ${request.url()}`));
    page.on("request", (request) => requests.push(request.url()));
    return { browser, page, faults, requests };
}
