// llama-server saves the state of a slot and restores it into another one: on ATS0 the saved
// file has the CPU's bytes, and what follows equals what follows on the CPU.
// Usage: test_state.mjs ARCHITECTURE

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { check, checkEqual, run } from "./lib/check.mjs";
import { complete, greedy, prompts, text } from "./lib/completion.mjs";
import { startAts, startCpu, stopAll } from "./lib/server.mjs";
import { synth, work } from "./lib/setting.mjs";
import { checkBothSides } from "./lib/stats.mjs";

const arch = process.argv[2] ?? "llama";
const digest = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");

// An empty slot reads a prompt and answers; its state is saved; the conversation goes on there,
// and once more in the other slot from the saved state.
async function converse(server) {
    const { tokens: prompt } = await server.json("/tokenize", { content: prompts[2], add_special: true });
    const { tokens: more } = await server.json("/tokenize", { content: text(9, 5) });
    const answer = await complete(server, greedy(prompt, { id_slot: 0 }));
    const saved = await server.json("/slots/0?action=save", { filename: "state" });
    const question = [...prompt, ...answer.tokens, ...more];
    const stayed = await complete(server, greedy(question, { id_slot: 0 }));
    const restored = await server.json("/slots/1?action=restore", { filename: "state" });
    const returned = await complete(server, greedy(question, { id_slot: 1 }));
    const erased = await server.json("/slots/1?action=erase", {});
    return { question, answer, stayed, returned, counts: [saved.n_saved, restored.n_restored, erased.n_erased] };
}

await run(
    150,
    async () => {
        const model = synth("model.gguf", "--arch", arch);
        const start = (how) => {
            const folder = path.join(work, how.name);
            mkdirSync(folder);
            return how(arch, ["-m", model, "-np", "2", "-c", "2048", "--slot-save-path", folder]);
        };
        const [cpu, ats] = await Promise.all([start(startCpu), start(startAts)]);
        const [cpuFile, atsFile] = [startCpu, startAts].map((how) => path.join(work, how.name, "state"));

        const expected = await converse(cpu);
        const actual = await converse(ats);
        checkEqual(expected, actual, `${arch}: a conversation with saved and restored state equals the CPU's`);
        checkEqual(actual.stayed, actual.returned, `${arch}: a restored state continues as the original one`);
        check(
            actual.returned.reused === actual.counts[0] && actual.counts[0] > 100,
            `${arch}: the restored state was used (${actual.returned.reused} tokens)`,
            actual.counts,
        );
        checkEqual(digest(cpuFile), digest(atsFile), `${arch}: the saved file has the CPU's bytes`);

        copyFileSync(cpuFile, path.join(work, startAts.name, "from-cpu"));
        await ats.json("/slots/0?action=restore", { filename: "from-cpu" });
        const taken = await complete(ats, greedy(actual.question, { id_slot: 0 }));
        checkEqual(expected.returned, taken, `${arch}: a state saved by the CPU continues on ATS0`);

        checkEqual({ code: 0, signal: null }, await ats.stop(), `${arch}: the server ends cleanly`);
        checkBothSides(ats.statsFile, arch);
    },
    stopAll,
);
