// shot.mjs PAGE.html PICTURE.png [BEGIN_MS END_MS]: a picture of a trace's page, for the documents.

import path from "node:path";
import { pathToFileURL } from "node:url";
import { openPage } from "./browser.mjs";

const [pageFile, picture, begin, end] = process.argv.slice(2);
const { browser, page, faults } = await openPage({ width: 1280, height: 430 });
await page.goto(pathToFileURL(path.resolve(pageFile)).href);
if (end !== undefined) {
    await page.evaluate(([b, e]) => window.ats.show(b * 1e6, e * 1e6), [Number(begin), Number(end)]);
}
await page.waitForTimeout(400);
await page.screenshot({ path: picture });
await browser.close();
if (faults.length > 0) {
    console.error(faults.join("\n"));
    process.exit(1);
}
