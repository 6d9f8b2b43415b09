// llama-server with four slots, streaming, on ATS0: every greedy completion equals the CPU's,
// token for token and in the log probabilities of the two best, whatever the placement.
// Usage: test_completions.mjs ARCHITECTURE; "demo" takes the model that the project ships, the
// others have random weights.

import { checkEqual, check, run } from "./lib/check.mjs";
import { complete, completeInTurn, completeTogether, greedy, promptsUpTo, slots, text } from "./lib/completion.mjs";
import { startBoth, stopAll } from "./lib/server.mjs";
import { shippedModel, synth } from "./lib/setting.mjs";
import { checkBothSides } from "./lib/stats.mjs";

const arch = process.argv[2] ?? "llama";
const shipped = arch === "demo";
const prompts = promptsUpTo(shipped ? 300 : 650);
const contextTokens = slots * (shipped ? 512 : 2048);
const count = (results) => results.reduce((sum, r) => sum + r.tokens.length, 0);
const reused = (results) => results.map((r) => r.reused);

await run(
    240,
    async () => {
        const model = shipped ? shippedModel : synth("model.gguf", "--arch", arch);
        const { cpu, ats } = await startBoth(arch, ["-m", model, "-np", String(slots), "-c", String(contextTokens)]);

        const same = async (what, complete, requests) => {
            const expected = await complete(cpu, requests);
            const actual = await complete(ats, requests);
            checkEqual(
                expected,
                actual,
                `${arch}: ${what}: ${requests.length} streams, ${count(expected)} tokens equal the CPU's`,
            );
            return actual;
        };

        await same(
            "one after another, cache off",
            completeInTurn,
            prompts.map((prompt) => greedy(prompt, { cache_prompt: false })),
        );

        const longer = prompts.map((prompt, i) => `${prompt} ${text(9, 10 + i)}`);
        const cached = await same(
            "one after another, cache on",
            completeInTurn,
            [...prompts, ...longer].map((prompt) => greedy(prompt, { cache_prompt: true })),
        );
        check(
            cached.slice(1, prompts.length).every((r) => r.reused > 1),
            `${arch}: the cache was used`,
            reused(cached),
        );

        // Unequal lengths: while some streams decode, others read their prompt.
        const queued = [...prompts, ...longer.toReversed()];
        const lengths = [48, 13, 37, 22, 48, 31, 7, 48];
        for (const cache_prompt of [false, true]) {
            const results = await same(
                `${slots} slots at a time, cache ${cache_prompt ? "on" : "off"}`,
                completeTogether,
                queued.map((prompt, i) => greedy(prompt, { n_predict: lengths[i], cache_prompt })),
            );
            if (cache_prompt) {
                check(
                    results.some((r) => r.reused > 1),
                    `${arch}: the cache was used by parallel streams`,
                    reused(results),
                );
            }
        }

        // The server answers on after all of this, and frees everything when it ends.
        await complete(ats, greedy(prompts[0]));
        checkEqual({ code: 0, signal: null }, await ats.stop(), `${arch}: the server ends cleanly`);
        checkBothSides(ats.statsFile, arch);
    },
    stopAll,
);
