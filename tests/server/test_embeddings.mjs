// Embeddings from llama-server: on ATS0 every number equals the CPU's.

import { check, checkEqual, run } from "./lib/check.mjs";
import { prompts } from "./lib/completion.mjs";
import { startBoth, stopAll } from "./lib/server.mjs";
import { synth } from "./lib/setting.mjs";
import { checkBothSides } from "./lib/stats.mjs";

// bert's synthetic model has 512 positions.
const inputs = prompts.slice(0, 3);

async function embed(server, input) {
    const { data } = await server.json("/v1/embeddings", { input, encoding_format: "float" });
    return data.map(({ embedding }) => embedding);
}

await run(
    120,
    async () => {
        for (const [arch, options] of [
            ["bert", []],
            ["llama", ["--pooling", "mean"]],
        ]) {
            const model = synth(`${arch}.gguf`, "--arch", arch);
            const { cpu, ats } = await startBoth(arch, [
                ...["-m", model, "--embeddings", "-np", "4", "-c", "2048", ...options],
            ]);
            for (const [what, input] of [
                ...inputs.map((text) => [`${text.split(" ").length} words`, text]),
                ["all texts in one batch", inputs],
            ]) {
                const expected = await embed(cpu, input);
                const actual = await embed(ats, input);
                checkEqual(expected, actual, `${arch}: embedding of ${what} equals the CPU's`);
                check(
                    actual.every((e) => Math.abs(Math.hypot(...e) - 1) < 1e-3),
                    `${arch}: embedding of ${what} has length 1`,
                );
            }
            checkEqual({ code: 0, signal: null }, await ats.stop(), `${arch}: the server ends cleanly`);
            checkBothSides(ats.statsFile, arch);
            await cpu.stop();
        }
    },
    stopAll,
);
