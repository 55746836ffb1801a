// llama.cpp with F32 weights through node-llama-cpp. Same lines in and out as worker.py.
// Arguments: the GGUF file, threads.
import readline from "node:readline";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);
const [file, threads] = [process.argv[2], Number(process.argv[3])];

const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads});
const model = await llama.loadModel({modelPath: file});
const answer = (line) => process.stdout.write(JSON.stringify(line) + "\n");

async function one(sequence, prompt, maxTokens, atFirst) {
    const tokens = [];
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        tokens.push(token);
        if (tokens.length === 1) atFirst();
        if (tokens.length === maxTokens) break;
    }
    return tokens;
}

answer({ready: true});
for await (const line of readline.createInterface({input: process.stdin})) {
    const {prompts, max_tokens: maxTokens} = JSON.parse(line);
    const longest = Math.max(...prompts.map((prompt) => prompt.length)) + maxTokens;
    const context = await model.createContext({
        contextSize: longest, sequences: prompts.length, batchSize: 512, threads
    });
    const sequences = prompts.map(() => context.getSequence());
    let missing = prompts.length, first = 0;
    const started = performance.now();
    const atFirst = () => { if (--missing === 0) first = performance.now(); };
    const outputs = await Promise.all(prompts.map((prompt, i) => one(sequences[i], prompt, maxTokens, atFirst)));
    const ended = performance.now();
    await context.dispose();
    answer({seconds: (ended - started) / 1000, first_token_seconds: (first - started) / 1000, outputs});
}
