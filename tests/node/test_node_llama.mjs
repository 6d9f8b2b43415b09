// node-llama-cpp from npm with its own prebuilt binaries generates on ATS0 what it generates on
// the CPU alone: the backend binds to whatever ggml of its version loads it.
// Usage: test_node_llama.mjs ARCHITECTURE; "demo" takes the model that the project ships, the others
// have random weights.

import { execFile } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { check, checkEqual, run } from "../server/lib/check.mjs";
import { atsEnvironment, cleanEnvironment, setting, shippedModel, synth, work } from "../server/lib/setting.mjs";
import { checkBothSides } from "../server/lib/stats.mjs";

const arch = process.argv[2] ?? "llama";
const generateScript = path.join(path.dirname(fileURLToPath(import.meta.url)), "generate.mjs");
const childLimitMs = 60_000;

// The package's ggml has no OpenMP: its threads wait for each other busily, which takes minutes
// where other programs use the processor too.
const threads = 1;

async function generate(model, environment) {
    const { stdout, stderr } = await promisify(execFile)(
        process.execPath,
        [generateScript, model, String(threads)],
        {
            cwd: work,
            env: { ...environment, ATS_NODE_LLAMA: setting.nodeLlama },
            timeout: childLimitMs,
            killSignal: "SIGKILL",
        },
    );
    return { ...JSON.parse(stdout.trimEnd().split("\n").at(-1)), stderr };
}

await run(150, async () => {
    // ggml repacks no f32 weights on any CPU, so the plain CPU run rounds like ours.
    const model = arch === "demo" ? shippedModel : synth("model.gguf", "--arch", arch, "--type", "f32");
    const stats = path.join(work, "stats.json");
    const cpu = await generate(model, cleanEnvironment());
    const ats = await generate(model, atsEnvironment(stats));

    const ours = ats.setting.libraries.filter((file) => path.basename(file) === "libggml-ats.so");
    const others = ats.setting.libraries.filter((file) => !ours.includes(file));
    check(ats.setting.buildType === "prebuilt", `${arch}: prebuilt binaries`, ats.setting);
    check(
        ours.length === 1 && others.length > 2 && others.every((file) => file.startsWith(setting.nodeLlama)),
        `${arch}: ours is loaded, and every other ggml library is the package's`,
        ats.setting.libraries,
    );
    check(cpu.setting.devices.length === 0, `${arch}: the reference ran on the CPU alone`, cpu.setting);
    check(ats.setting.gpuLayers > 1, `${arch}: ${ats.setting.gpuLayers} layers offloaded`, ats.setting);
    for (const name of Object.keys(cpu.results)) {
        checkEqual(cpu.results[name], ats.results[name], `${arch}: ${name} equal the CPU's`);
    }
    const tokens = cpu.results.completions.map((c) => c.tokens.length);
    check(
        tokens.every((n) => n === 48) && cpu.results.chat.every((answer) => answer.length > 0),
        `${arch}: it really generated (${tokens.join(" and ")} tokens, ${cpu.results.chat.length} answers)`,
        cpu.results.chat,
    );
    checkBothSides(stats, arch);
});
