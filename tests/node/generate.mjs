// Generates greedily with node-llama-cpp as its users do, and prints what came out as JSON.
// Usage: generate.mjs MODEL THREADS. The environment says whether ATS is there.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

// The log reaches us after the error that it explains.
process.on("uncaughtException", (error) => {
    console.error(error);
    setTimeout(() => process.exit(1), 200);
});

const [modelPath, threads] = [process.argv[2], Number(process.argv[3])];
const predictTokens = 48;
const packages = path.join(process.env.ATS_NODE_LLAMA, "node_modules");
const entry = path.join(packages, "node-llama-cpp/dist/index.js");
const { getLlama, LlamaChatSession } = await import(pathToFileURL(entry));

// The binaries without a GPU of their own: node-llama-cpp names the kinds of GPU that it knows,
// and ours is none of them. It offloads nevertheless if asked for a number of layers.
const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, logLevel: "warn" });
const model = await llama.loadModel({ modelPath, gpuLayers: "max" });

const completions = [];
for (const prompt of ["Once upon a time", "The quick brown fox jumps over the lazy dog. ".repeat(20)]) {
    const context = await model.createContext({ contextSize: 512, threads });
    const tokens = [];
    for await (const token of context.getSequence().evaluate(model.tokenize(prompt), { temperature: 0 })) {
        tokens.push(token);
        if (tokens.length === predictTokens) break;
    }
    completions.push({ tokens, text: model.detokenize(tokens) });
    await context.dispose();
}

// One after another: how their batches fall together would depend on time, and the number of
// tokens in a batch decides how ggml's kernels round.
const context = await model.createContext({ contextSize: 512, sequences: 2, threads });
const chat = [];
for (const question of ["What is the sea?", "Who are you?"]) {
    const session = new LlamaChatSession({ contextSequence: context.getSequence() });
    chat.push(await session.prompt(question, { temperature: 0, maxTokens: predictTokens }));
}
await context.dispose();

const embedder = await model.createEmbeddingContext({ contextSize: 512, threads });
const { vector: embedding } = await embedder.getEmbeddingFor("The sea is wide");
await embedder.dispose();

const gpuLayers = model.gpuLayers;
const devices = await llama.getGpuDeviceNames();
const libraries = [...new Set(readFileSync("/proc/self/maps", "utf8").match(/\/\S*lib(ggml|llama)\S*/g))];
await model.dispose();
await llama.dispose();

console.log(
    JSON.stringify({
        results: { completions, chat, embedding: [...embedding] },
        setting: { buildType: llama.buildType, gpuLayers, devices, libraries },
    }),
);
