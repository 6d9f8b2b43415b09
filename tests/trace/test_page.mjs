// The page of `ats trace` in a real browser without a network: it loads, shows its lanes, moves by
// keys, mouse and buttons, and its totals are those of the trace for Perfetto. And with so many bars
// as a long run has.

import { execFileSync } from "node:child_process";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { check, checkEqual, run } from "../server/lib/check.mjs";
import { keptFolder, setting, synth, work } from "../server/lib/setting.mjs";
import { atsEnvironment } from "../server/lib/setting.mjs";
import { openPage } from "./browser.mjs";

const many = 200_000;
const drawLimitMs = 1000; // of two pictures with all bars; an idle machine takes a tenth
let opened;

function trace(model, name) {
    const out = path.join(work, name);
    const { GGML_BACKEND_PATH: library, ...environment } = atsEnvironment(path.join(work, "stats.json"));
    execFileSync(
        setting.ats,
        [
            ...["trace", "--out", out, "run", "--vram", "14M", "--promote", "all", "-ub", "32"],
            ...["-m", model, "-p", "word ".repeat(80), "-n", "5", "-no-cnv"],
        ],
        { env: { ...environment, ATS_BACKEND: library }, stdio: "ignore", timeout: 100_000 },
    );
    return { html: `${out}.html`, json: JSON.parse(readFileSync(`${out}.json`, "utf8")) };
}

const near = (a, b) => Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b), 1);

// The page adds up what it draws; the command added up what it wrote.
function checkTotals(phases, summary) {
    for (const [phase, page] of Object.entries(phases)) {
        const command = summary.phases[phase];
        const pairs = {
            passes: [page.passes, command.passes],
            tokens: [page.tokens, command.tokens],
            time: [page.wall / 1e3, command.wall_us],
            cpu: [page.cpu / 1e3, command.cpu_us],
            accelerator: [page.accel / 1e3, command.accel_us],
            link: [page.link / 1e3, command.link_us],
            both: [page.both / 1e3, command.both_us],
            overlap: [page.overlap, command.overlap],
            wait: [page.wait / 1e3, command.wait_us],
            stall: [page.stall / 1e3, command.stall_us],
            submit: [page.submit / 1e3, command.submit_us],
            plan: [page.plan / 1e3, command.plan_us],
            toDevice: [page.bytesToDevice, command.to_device_bytes],
            toHost: [page.bytesToHost, command.to_host_bytes],
            splits: [page.splits, command.splits],
            synchronizations: [page.synchronizations, command.synchronizations],
            eventWaits: [page.eventWaits, command.event_waits],
        };
        const wrong = Object.entries(pairs).filter(([, [a, b]]) => !near(a, b));
        check(wrong.length === 0 && page.wall > 0, `totals of ${phase} are the command's`, ...wrong);
    }
}

async function checkMoving(page) {
    const view = () => page.evaluate(() => ({ ...window.ats.view }));
    const span = (v) => v.end - v.begin;
    const whole = await view();
    await page.locator("#canvas").focus();
    for (const [what, act] of [
        ["the key +", () => page.keyboard.press("+")],
        ["the button +", () => page.locator("#in").click()],
        [
            "the wheel",
            async () => {
                await page.locator("#canvas").hover({ position: { x: 600, y: 100 } });
                await page.mouse.wheel(0, -200);
            },
        ],
    ]) {
        const before = await view();
        await act();
        await page.waitForTimeout(50);
        const after = await view();
        check(span(after) < span(before) * 0.9, `${what} zooms in`, before, after);
    }
    const before = await view();
    await page.keyboard.press("ArrowRight");
    const right = await view();
    check(right.begin > before.begin && near(span(right), span(before)), "the arrow moves", before, right);
    await page.mouse.move(500, 250);
    await page.mouse.down();
    await page.mouse.move(700, 250);
    await page.mouse.up();
    const dragged = await view();
    check(dragged.begin < right.begin && near(span(dragged), span(right)), "dragging moves", right, dragged);
    await page.keyboard.press("-");
    check(span(await view()) > span(dragged), "the key - zooms out");
    await page.keyboard.press("n");
    const first = await view();
    await page.keyboard.press("n");
    const second = await view();
    check(second.begin > first.begin, "n goes from pass to pass", first, second);
    await page.keyboard.press("0");
    checkEqual(whole, await view(), "0 shows everything");
}

async function checkContent(page, json) {
    const lanes = json.traceEvents
        .filter((event) => event.ph === "M" && event.name === "thread_name")
        .map((event) => event.args.name)
        .slice(1);
    checkEqual(lanes, await page.evaluate(() => window.ats.data.lanes.map((lane) => lane.name)), "the lanes");
    check(lanes.length === 3, "a lane for the CPU, one for each stream", lanes);
    const text = await page.locator("body").innerText();
    check(/EMULATED/.test(text), "it says that the accelerator is emulated");
    const cells = await page.locator('#totals td[data-phase="prefill"]').allInnerTexts();
    check(cells.length > 10 && cells.every((cell) => cell !== ""), "the table is filled", cells);

    // Pointing at a copy names tensor, bytes and rate.
    const spot = await page.evaluate(() => {
        const { data, show } = window.ats;
        const i = data.bars.kind.findIndex(
            (kind, k) => data.kinds[kind] === "to device" && data.lanes[data.bars.lane[k]].role === 2,
        );
        show(data.bars.begin[i] - data.bars.length[i], data.bars.begin[i] + 2 * data.bars.length[i]);
        return { name: data.names[data.bars.name[i]] };
    });
    const box = await page.locator("#canvas").boundingBox();
    await page.waitForTimeout(200);
    await page.mouse.move(box.x + 168 + (box.width - 168) / 2, box.y + box.height - 30);
    const tip = await page.locator("#tip").innerText();
    check(
        tip.includes(spot.name) && /GB\/s/.test(tip) && /iB/.test(tip) && /^blk\./.test(spot.name),
        `pointing at a copy tells: ${tip.replaceAll("\n", "; ")}`,
    );
    const painted = await page.evaluate(() => {
        const canvas = document.getElementById("canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size;
    });
    check(painted > 20, `the chart has ${painted} colours`);

    await page.keyboard.press("/");
    await page.keyboard.type("ffn_down");
    check(/^[1-9]\d* found$/.test(await page.locator("#found").innerText()), "a search finds operators");
    await page.keyboard.press("Escape");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const before = await theme();
    await page.keyboard.press("t");
    check((await theme()) !== before, `from ${before} to ${await theme()}`);
}

// The page with many more bars: copies of those that it has, one run behind the other.
async function checkMany(page, html) {
    const text = readFileSync(html, "utf8");
    const mark = '<script type="application/json" id="data">';
    const begin = text.indexOf(mark) + mark.length;
    const end = text.indexOf("</script>", begin);
    const data = JSON.parse(text.slice(begin, end));
    const n = data.bars.begin.length;
    const times = Math.ceil(many / n);
    const order = [];
    for (let lane = 0, i = 0; lane < data.lanes.length; lane++) {
        const first = i;
        while (i < n && data.bars.lane[i] === lane) i++;
        for (let t = 0; t < times; t++) for (let k = first; k < i; k++) order.push([k, t]);
    }
    const bars = {};
    for (const [column, values] of Object.entries(data.bars)) {
        bars[column] = order.map(([k, t]) => values[k] + (column === "begin" ? t * data.length : 0));
    }
    const large = path.join(work, "large.html");
    const content = JSON.stringify({ ...data, bars, length: data.length * times });
    writeFileSync(large, text.slice(0, begin) + content + text.slice(end));
    await page.goto(pathToFileURL(large).href);
    const ms = await page.evaluate(async () => {
        const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
        await frame();
        const took = [];
        for (let i = 0; i < 5; i++) {
            const from = performance.now();
            window.ats.zoom(0.9);
            await frame();
            await frame();
            took.push(performance.now() - from);
        }
        return took.sort((a, b) => a - b)[2];
    });
    check(order.length >= many && ms < drawLimitMs, `${order.length} bars are drawn in ${ms.toFixed(0)} ms`);
}

await run(
    200,
    async () => {
        const { html, json } = trace(synth("model.gguf", "--arch", "qwen3moe"), "page");
        const text = readFileSync(html, "utf8");
        check(!/(src|href)\s*=\s*["']?(https?:)?\/\//.test(text), "the page names no other address");
        check(statSync(html).size < 2e6, `the page has ${(statSync(html).size / 1e3).toFixed(0)} kB`);
        opened = await openPage();
        const { page, faults, requests } = opened;
        await page.goto(pathToFileURL(html).href);
        checkTotals(await page.evaluate(() => window.ats.phases), json.otherData);
        const drawn = await page.evaluate(() => window.ats.data.bars.begin.length);
        const exact = json.traceEvents.filter((event) => event.ph === "X").length;
        checkEqual(exact, drawn, "a bar for each event");
        await checkMoving(page);
        await checkContent(page, json);
        await page.screenshot({ path: path.join(keptFolder(), "trace-page.png") });
        await checkMany(page, html);
        check(faults.length === 0, "the page complains about nothing", ...faults);
        const others = requests.filter((url) => !/^(file|data):/.test(url));
        check(others.length === 0, "the page asks for nothing else", ...others);
    },
    async () => {
        await opened?.browser.close().catch(() => {});
    },
);
