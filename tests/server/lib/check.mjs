// One line per check on stdout; the process ends with 1 if any of them failed, if nothing was
// checked, if anything was thrown, or if the whole test takes too long.

let checks = 0;
let failures = 0;

export function check(passed, what, ...details) {
    checks += 1;
    if (passed) {
        console.log(`ok   ${what}`);
        return true;
    }
    failures += 1;
    console.log(`FAIL ${what}`);
    for (const detail of details) {
        console.log(`     ${typeof detail === "string" ? detail : JSON.stringify(detail)}`);
    }
    return false;
}

// Where two values differ first, in words; nothing if they are equal.
function firstDifference(expected, actual, place) {
    if (Object.is(expected, actual)) return null;
    const composite = (v) => v !== null && typeof v === "object";
    if (!composite(expected) || !composite(actual)) {
        return `at ${place}: expected ${JSON.stringify(expected)}, found ${JSON.stringify(actual)}`;
    }
    for (const key of new Set([...Object.keys(expected), ...Object.keys(actual)])) {
        const difference = firstDifference(expected[key], actual[key], `${place}.${key}`);
        if (difference) return difference;
    }
    return null;
}

export function checkEqual(expected, actual, what) {
    const difference = firstDifference(expected, actual, "result");
    return check(difference === null, what, difference ?? "");
}

function finish() {
    if (checks === 0) console.log("FAIL nothing was checked");
    console.log(`${checks} checks, ${failures} failed`);
    process.exit(failures > 0 || checks === 0 ? 1 : 0);
}

// Runs `test`, then `stop` whatever happened. Must be shorter than ctest's own limit, which
// would leave servers behind.
export async function run(limitSeconds, test, stop = async () => {}) {
    let failing = false;
    const fail = async (reason) => {
        if (failing) return; // stopping fails too, or nobody reads our output any more
        failing = true;
        check(false, reason?.stack ?? String(reason));
        await stop().catch(() => {});
        finish();
    };
    setTimeout(() => void fail(`not finished after ${limitSeconds} s`), limitSeconds * 1000).unref();
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
        process.on(signal, () => void fail(`ended by ${signal}`));
    }
    process.on("unhandledRejection", (reason) => void fail(reason));
    process.on("uncaughtException", (reason) => void fail(reason));
    try {
        await test();
    } catch (error) {
        return fail(error);
    }
    await stop();
    finish();
}
