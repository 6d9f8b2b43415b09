// Greedy completions: one after another, four at a time as they come, and four at a time in
// batches that are the same in every run.

import { sleep } from "./server.mjs";

export const predictTokens = 48;
export const slots = 4;

const vocabulary = (
    "the old river carries small boats past a quiet town where people sell bread fish salt and " +
    "paper lamps while children run along the wall and count birds over the grey water"
).split(" ");

// A fixed text of so many words; other seeds give other texts.
export function text(wordCount, seed) {
    const picked = [];
    for (let i = 0, state = seed * 7919 + 17; i < wordCount; i++) {
        state = (state * 1103515 + 12345) % 2147483648;
        picked.push(vocabulary[(state >>> 8) % vocabulary.length]);
    }
    return picked.join(" ");
}

// One token, a line, more than a batch of 32, more than a ubatch of 512 unless the model's context
// is too short for that.
export const promptsUpTo = (words) => [text(1, 1), text(12, 2), text(110, 3), text(words, 4)];
export const prompts = promptsUpTo(650);

// The end of text is no choice: every completion has the same length, so that slots which start
// together stay together. Two candidates with their log probabilities come with each token.
export const greedy = (prompt, options = {}) => ({
    prompt,
    n_predict: predictTokens,
    temperature: 0,
    ignore_eos: true,
    return_tokens: true,
    n_probs: 2,
    ...options,
});

// One streamed completion: its tokens, and the log probability of each of the two best.
export async function complete(server, request) {
    const result = { tokens: [], best: [], second: [], reused: undefined };
    for await (const event of server.events("/completion", request)) {
        result.tokens.push(...event.tokens);
        for (const { top_logprobs: top } of event.completion_probabilities ?? []) {
            result.best.push(top[0].logprob);
            result.second.push(top[1].logprob);
        }
        if (event.stop) result.reused = event.timings.cache_n;
    }
    if (result.tokens.length !== request.n_predict) {
        throw server.fault(`a stream ended after ${result.tokens.length} of ${request.n_predict} tokens`);
    }
    return result;
}

export async function completeInTurn(server, requests) {
    const results = [];
    for (const request of requests) results.push(await complete(server, request));
    return results;
}

async function deferredRequests(server) {
    const metrics = await (await server.fetch("/metrics")).text();
    return Number(/^llamacpp:requests_deferred (\d+)/m.exec(metrics)?.[1]);
}

// Streams whose batches do not depend on when the requests arrive. The number of tokens in a
// batch decides which of ggml's kernels run, and those round differently, on the CPU alone as
// well: streams that merely start at about the same time cannot be compared.
//
// One request with a prompt for every slot occupies the server; the streams queue up behind it,
// one by one; then the client of that request hangs up. That frees all slots between two steps,
// so the first streams start in the same batch, and each later one in the step in which another
// ends. No stream asks for a slot by its number: llama.cpp v0.5.0 then loads a cached prompt
// into that slot even while another stream runs there.
export async function completeTogether(server, requests) {
    const hangUp = new AbortController();
    const holdTokens = 1500;
    const hold = greedy(
        // Must have no word in common with any stream, or the cache would offer it.
        Array.from({ length: slots }, (_, i) => `${i + 1} ${i + 1} ${i + 1}`),
        { n_predict: holdTokens, cache_prompt: false },
    );
    let held = 0;
    const holding = (async () => {
        for await (const event of server.events("/completion", hold, hangUp.signal)) {
            held += event.tokens.length;
        }
        throw server.fault("the request that holds all slots ended by itself");
    })();
    holding.catch(() => {}); // awaited below
    while (held < slots) await Promise.race([holding, sleep(2)]);

    const streams = [];
    for (const request of requests) {
        const stream = complete(server, request);
        stream.catch(() => {}); // awaited below
        streams.push(stream);
        while ((await deferredRequests(server)) < streams.length) {
            await Promise.race([holding, stream, sleep(2)]);
        }
    }
    hangUp.abort();
    await holding.catch((error) => {
        if (!hangUp.signal.aborted || !/abort/i.test(error.message)) throw error;
    });
    return Promise.all(streams);
}
