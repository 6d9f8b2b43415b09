// llama-server as a child process: on the CPU alone, or on ATS0.

import { spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import path from "node:path";
import { atsEnvironment, cleanEnvironment, setting, work } from "./setting.mjs";

const startLimitMs = 60_000;
const requestLimitMs = 60_000;
const stopLimitMs = 15_000;
const leaveLimitMs = 2_000; // at the end of a test: what had to be said about stopping is said

const running = new Set();
process.on("exit", () => {
    for (const server of running) server.child.kill("SIGKILL");
});

export async function stopAll() {
    await Promise.allSettled([...running].map((server) => server.stop(leaveLimitMs)));
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Same rounding everywhere: equal thread counts, no repacked weights.
const commonOptions = () => [
    ...["--host", "127.0.0.1", "--port", "0", "--offline", "--metrics", "--no-repack"],
    ...["-t", String(setting.threads), "-tb", String(setting.threads)],
];

class Server {
    constructor(name, options, env) {
        this.name = name;
        this.logFile = path.join(work, `${name}-${running.size}-${Date.now()}.log`);
        const log = openSync(this.logFile, "w");
        // The kernel ends the server if this process is killed.
        this.child = spawn(
            "setpriv",
            ["--pdeathsig", "KILL", path.join(setting.llamaBin, "llama-server"), ...options],
            { cwd: work, env, stdio: ["ignore", log, log] },
        );
        closeSync(log);
        this.ended = new Promise((resolve) => {
            this.child.on("error", (error) => resolve({ error }));
            this.child.on("exit", (code, signal) => resolve({ code, signal }));
        });
        this.ended.then((how) => {
            this.how = how;
            running.delete(this);
        });
        running.add(this);
    }

    get log() {
        return readFileSync(this.logFile, "utf8");
    }

    fault(what) {
        const tail = this.log.trimEnd().split("\n").slice(-25).join("\n     | ");
        return new Error(`${this.name}: ${what}\n     | ${tail}`);
    }

    async ready() {
        const end = Date.now() + startLimitMs;
        while (Date.now() < end) {
            if (this.how) throw this.fault(`ended while starting: ${JSON.stringify(this.how)}`);
            this.url ??= /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(this.log)?.[1];
            if (this.url) {
                const answer = await fetch(`${this.url}/health`, { signal: AbortSignal.timeout(5000) }).catch(
                    () => null,
                );
                if (answer?.ok) return this;
            }
            await sleep(50);
        }
        throw this.fault(`did not start within ${startLimitMs / 1000} s`);
    }

    async fetch(route, body, signal) {
        const limit = AbortSignal.timeout(requestLimitMs);
        const answer = await fetch(this.url + route, {
            method: body === undefined ? "GET" : "POST",
            // no connection is kept, which the server may close while a request is under way
            headers: { "content-type": "application/json", connection: "close" },
            body: body === undefined ? undefined : JSON.stringify(body),
            signal: signal ? AbortSignal.any([limit, signal]) : limit,
        }).catch(async (error) => {
            await Promise.race([this.ended, sleep(500)]);
            const how = this.how ? `it ended: ${JSON.stringify(this.how)}` : "it still runs";
            throw this.fault(`${route}: ${error.message}: ${error.cause?.message ?? ""}; ${how}`);
        });
        if (!answer.ok) throw this.fault(`${route}: HTTP ${answer.status}: ${await answer.text()}`);
        return answer;
    }

    async json(route, body) {
        return (await this.fetch(route, body)).json();
    }

    // The events of a streamed answer, one by one.
    async *events(route, body, signal) {
        const answer = await this.fetch(route, { ...body, stream: true }, signal);
        const decoder = new TextDecoder();
        let text = "";
        for await (const bytes of answer.body) {
            text += decoder.decode(bytes, { stream: true });
            for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
                const event = text.slice(0, end);
                if (event.startsWith("error:")) throw this.fault(`${route}: ${event}`);
                if (event.startsWith("data: {")) yield JSON.parse(event.slice("data: ".length));
            }
        }
    }

    // How it ended: a server that is asked to stop frees its contexts and exits with 0.
    async stop(limitMs = stopLimitMs) {
        this.child.kill("SIGTERM");
        const timer = setTimeout(() => this.child.kill("SIGKILL"), limitMs);
        const how = await this.ended;
        clearTimeout(timer);
        return how;
    }
}

export async function startCpu(name, options) {
    return new Server(`cpu-${name}`, [...commonOptions(), "--device", "none", ...options], cleanEnvironment()).ready();
}

export async function startAts(name, options) {
    const stats = path.join(work, `stats-${name}.json`);
    const server = new Server(
        `ats-${name}`,
        [...commonOptions(), "--device", "ATS0", ...options],
        atsEnvironment(stats),
    );
    server.statsFile = stats;
    return server.ready();
}

// The same server twice, side by side.
export async function startBoth(name, options) {
    const [cpu, atsServer] = await Promise.all([startCpu(name, options), startAts(name, options)]);
    return { cpu, ats: atsServer };
}
