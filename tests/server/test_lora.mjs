// LoRA adapters in llama-server, switched while it runs: for the whole server and for single
// requests. On ATS0 every completion equals the CPU's.
// Usage: test_lora.mjs ARCHITECTURE

import { check, checkEqual, run } from "./lib/check.mjs";
import { complete, completeTogether, greedy, prompts } from "./lib/completion.mjs";
import { startBoth, stopAll } from "./lib/server.mjs";
import { synth } from "./lib/setting.mjs";
import { checkBothSides } from "./lib/stats.mjs";

const arch = process.argv[2] ?? "llama";
const prompt = prompts[1];
const scales = (first, second) => [
    { id: 0, scale: first },
    { id: 1, scale: second },
];

async function withAdapters(server) {
    const results = {};
    const globally = async (name, lora) => {
        if (lora) await server.json("/lora-adapters", lora);
        results[name] = await complete(server, greedy(prompt, { cache_prompt: false }));
    };
    await globally("both, from the start", undefined);
    await globally("the first", scales(1, 0));
    await globally("the second", scales(0, 0.5));
    await globally("none", scales(0, 0));
    await globally("both again", scales(1, 1));
    // Requests with their own adapters wait for each other; they may not mix.
    const own = [scales(1, 0), scales(0, 0), scales(0, 1), scales(0.5, 1.5)];
    results["each request its own"] = await completeTogether(
        server,
        own.map((lora) => greedy(prompt, { lora, cache_prompt: false })),
    );
    return results;
}

await run(
    150,
    async () => {
        const model = synth("model.gguf", "--arch", arch);
        const adapters = ["21", "22"].map((seed) =>
            synth(`adapter-${seed}.gguf`, "--lora-for", model, "--seed", seed),
        );
        const { cpu, ats } = await startBoth(`lora-${arch}`, [
            ...["-m", model, "-np", "4", "-c", "4096"],
            ...["--lora", adapters.join(",")],
        ]);
        const expected = await withAdapters(cpu);
        const actual = await withAdapters(ats);
        for (const name of Object.keys(expected)) {
            checkEqual(expected[name], actual[name], `${arch}: adapters: ${name}: equals the CPU's`);
        }
        checkEqual(
            actual["both, from the start"],
            actual["both again"],
            `${arch}: adapters: both again: as from the start`,
        );
        const choices = ["both again", "the first", "the second", "none"];
        check(
            new Set(choices.map((name) => actual[name].tokens.join())).size === choices.length,
            `${arch}: adapters: every choice says something else`,
        );

        checkEqual({ code: 0, signal: null }, await ats.stop(), `${arch}: the server ends cleanly`);
        checkBothSides(ats.statsFile, arch);
    },
    stopAll,
);
