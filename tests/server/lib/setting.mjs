// Where everything is, and the small models that the tests use. run.sh sets the environment.

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
const build = process.env.ATS_BUILD || path.join(root, "build", process.env.PRESET || "release");

function prepared(what, value, remedy) {
    if (!value || !existsSync(value)) {
        throw new Error(`${what} is missing${value ? ` (${value})` : ""}: ${remedy}`);
    }
    return value;
}

const setUp = "run scripts/setup/setup.sh test";

export const setting = {
    // Results must not depend on where a weight lies: it is drawn.
    placement: `random:${process.env.ATS_TEST_SEED || 1}`,
    get llamaBin() {
        return prepared("llama.cpp's build", process.env.ATS_LLAMA_BIN, setUp);
    },
    get ats() {
        return prepared("the command ats", process.env.ATS || path.join(build, "bin/ats"), "make build");
    },
    get library() {
        const file = process.env.ATS_LIBRARY || path.join(build, "lib/libggml-ats.so");
        return prepared("the backend", file, "make build");
    },
    get nodeLlama() {
        return prepared("node-llama-cpp", process.env.ATS_NODE_LLAMA, setUp);
    },
    get browserPackages() {
        return prepared("playwright-core", process.env.ATS_BROWSER, setUp);
    },
    get chromium() {
        return prepared("the browser chromium", process.env.ATS_CHROMIUM, setUp);
    },
    profiles: path.join(root, "profiles"),
    threads: 2,
};

// What a user may have set must not decide a test.
const environment = Object.fromEntries(
    Object.entries(process.env).filter(
        ([name]) => !/^(ATS_|GGML_|LLAMA_ARG_|LLAMA_CACHE|LD_LIBRARY_PATH|OMP_)/.test(name),
    ),
);

// OMP_WAIT_POLICY: ggml's threads wait for each other at every operator; where other programs
// use the processor too, waiting busily makes everything ten times slower.
export function cleanEnvironment(extra = {}) {
    return { ...environment, OMP_WAIT_POLICY: "passive", ...extra };
}

// What switches the backend on in any program, over the emulated accelerator.
export function atsEnvironment(stats) {
    return cleanEnvironment({
        GGML_BACKEND_PATH: setting.library,
        ATS_EMULATE: "emu-small",
        ATS_PROFILES: setting.profiles,
        ATS_PLACEMENT: setting.placement,
        ATS_STATS: stats,
    });
}

// The trained model that the project ships; its context is 512 tokens.
export const shippedModel = path.join(root, "models", "demo.gguf");

// A folder of this test, removed when the process ends.
export const work = mkdtempSync(path.join(tmpdir(), "ats-test-"));
process.on("exit", () => rmSync(work, { recursive: true, force: true }));

// A folder that stays after the test, for what a person may want to look at.
export function keptFolder() {
    const folder = path.join(build, "tests");
    mkdirSync(folder, { recursive: true });
    return folder;
}

export function synth(name, ...options) {
    const file = path.join(work, name);
    execFileSync(setting.ats, ["synth", "--out", file, ...options], {
        env: cleanEnvironment({ ATS_LLAMA_SRC: process.env.ATS_LLAMA_SRC }),
        stdio: ["ignore", "ignore", "inherit"],
        timeout: 60_000,
    });
    return file;
}
