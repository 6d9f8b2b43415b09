// The counters that ATS_STATS writes: proof that a run really used both sides.

import { readFileSync } from "node:fs";
import { check } from "./check.mjs";
import { setting } from "./setting.mjs";

export function checkBothSides(file, what) {
    let device;
    try {
        device = JSON.parse(readFileSync(file, "utf8")).devices.find((d) => d.name === "ATS0");
    } catch (error) {
        check(false, `${what}: no counters were written`, String(error));
        return;
    }
    const { vram, host } = device?.weights ?? {};
    check(
        vram?.tensors > 0 && host?.tensors > 0 && device.graphs > 0,
        `${what}: placement ${setting.placement}: ${device?.graphs} graphs on ATS0, ` +
            `${vram?.tensors} weights in VRAM, ` +
            `${host?.tensors} in host memory, ${device?.splits} splits`,
        device,
    );
}
