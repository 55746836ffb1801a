/* A whole decoder in one parallel region: its threads meet only where one operation needs all of the one before. */
#include "decoder.h"

#include <omp.h>

#include "constants.h"

/* Each operation of a layer takes its tasks from a counter of its own: one that was used up gives no task, and the
 * operation would be left out without a word. */
enum {
    QKV_TASKS, STORE_TASKS, ATTENTION_TASKS, MERGE_TASKS, ATTENTION_OUT_TASKS, ATTENTION_ADD_TASKS, GATE_UP_TASKS,
    MLP_OUT_TASKS, MLP_ADD_TASKS, NUM_LAYER_COUNTERS
};

/* What one thread of the team has. */
typedef struct {
    float *scratch;
    int team; /* number of threads */
    Barrier *barrier;
} Member;

/* Half-rotation RoPE (Su et al. 2021, in the layout of GPT-NeoX): dimension i turns with i + rotary_dim / 2. */
static void rotate(float *x, const float *cos, const float *sin, int64_t rotary_dim) {
    int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float low = x[i], high = x[i + half];
        x[i] = low * cos[i] - high * sin[i];
        x[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

static void prepare_heads(const DecoderLayer *layer, float *heads, int64_t num_heads, const float *norm, int64_t position) {
    int64_t dim = layer->attention.key_dim;
    for (int64_t h = 0; h < num_heads; h++) {
        float *x = heads + h * dim;
        if (norm) rms_norm(x, norm, layer->norm_eps, dim, x);
        if (layer->cos) rotate(x, layer->cos + position * layer->rotary_dim, layer->sin + position * layer->rotary_dim, layer->rotary_dim);
    }
}

/* Norms and turns queries and keys, and writes keys and values into the pages. */
static void store_keys(const DecoderLayer *layer, const Step *step, float *qkv, Counter *counter) {
    const AttentionLayer *a = &layer->attention;
    int64_t keys = a->kv_heads * a->key_dim, values = a->kv_heads * a->value_dim;
    int64_t num_tasks = (step->num_tokens + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK;
    for (int64_t task; (task = take_task(counter)) < num_tasks;)
        for (int64_t t = task * TOKENS_PER_TASK; t < (task + 1) * TOKENS_PER_TASK && t < step->num_tokens; t++) {
            float *query = qkv + t * layer->qkv.n, *key = query + a->heads * a->key_dim, *value = key + keys;
            prepare_heads(layer, query, a->heads, layer->query_norm, step->positions[t]);
            prepare_heads(layer, key, a->kv_heads, layer->key_norm, step->positions[t]);
            int64_t page = step->slots[t] / step->batch.page_size, offset = step->slots[t] % step->batch.page_size;
            memcpy((float *)a->keys + page * a->key_page_stride + offset * keys, key, keys * sizeof(float));
            memcpy((float *)a->values + page * a->value_page_stride + offset * values, value, values * sizeof(float));
        }
}

/* x[t] += norm(y[t]) */
static void add_normed(const Step *step, const float *norm, float eps, int64_t hidden, float *x, float *y, Counter *counter) {
    int64_t num_tasks = (step->num_tokens + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK;
    for (int64_t task; (task = take_task(counter)) < num_tasks;)
        for (int64_t t = task * TOKENS_PER_TASK; t < (task + 1) * TOKENS_PER_TASK && t < step->num_tokens; t++) {
            rms_norm(y + t * hidden, norm, eps, hidden, y + t * hidden);
            for (int64_t i = 0; i < hidden; i++) x[t * hidden + i] += y[t * hidden + i];
        }
}

/* Adds a layer's part to the hidden rows: directly, or normed first where the layer norms what it gives out. */
static void add_output(const Linear *linear, const float *in, const DecoderLayer *layer, const float *norm, const Step *step,
                       Workspace *w, const Member *me, Counter *tasks, Counter *add_tasks) {
    LinearInput input = {.rows = in, .m = step->num_tokens, .row_stride = linear->k};
    linear_tasks(linear, &input, w->other, norm ? 0 : w->hidden, me->scratch, me->team, tasks);
    team_wait(me->barrier, me->team);
    if (norm) {
        add_normed(step, norm, layer->norm_eps, linear->n, w->hidden, w->other, add_tasks);
        team_wait(me->barrier, me->team);
    } else {
        float *swap = w->hidden; /* each thread has a workspace of its own, so all swap alike */
        w->hidden = w->other, w->other = swap;
    }
}

static void run_layer(const DecoderLayer *layer, const Step *step, Workspace *w, const Member *me, Counter *counters) {
    LinearInput input = {.rows = w->hidden, .m = step->num_tokens, .row_stride = layer->qkv.k, .norm = layer->input_norm,
                         .norm_eps = layer->norm_eps};
    linear_tasks(&layer->qkv, &input, w->qkv, 0, me->scratch, me->team, counters + QKV_TASKS);
    team_wait(me->barrier, me->team);
    store_keys(layer, step, w->qkv, counters + STORE_TASKS);
    team_wait(me->barrier, me->team);
    attention_tasks(&layer->attention, &step->batch, w->qkv, w->attended, me->scratch, w->partials, counters + ATTENTION_TASKS);
    team_wait(me->barrier, me->team);
    if (attention_partial_floats(&layer->attention, &step->batch)) {
        attention_merge(&layer->attention, &step->batch, w->attended, w->partials, counters + MERGE_TASKS);
        team_wait(me->barrier, me->team);
    }
    add_output(&layer->attention_out, w->attended, layer, layer->attention_out_norm, step, w, me,
               counters + ATTENTION_OUT_TASKS, counters + ATTENTION_ADD_TASKS);
    input.rows = w->hidden, input.norm = layer->mlp_norm;
    linear_tasks(&layer->gate_up, &input, w->inner, 0, me->scratch, me->team, counters + GATE_UP_TASKS);
    team_wait(me->barrier, me->team);
    add_output(&layer->mlp_out, w->inner, layer, layer->mlp_out_norm, step, w, me, counters + MLP_OUT_TASKS,
               counters + MLP_ADD_TASKS);
}

int64_t decoder_scratch_floats(const Decoder *decoder) {
    int64_t most = linear_scratch_floats(decoder->hidden);
    for (int64_t i = 0; i < decoder->num_layers; i++) {
        int64_t needed = attention_scratch_floats(&decoder->layers[i].attention);
        if (needed > most) most = needed;
    }
    return most;
}

/* Those of the layers, and one for the head. */
int64_t decoder_counter_bytes(const Decoder *decoder) {
    return (decoder->num_layers * NUM_LAYER_COUNTERS + 1) * (int64_t)sizeof(Counter);
}

int64_t decoder_partial_floats(const Decoder *decoder, const Batch *batch) {
    int64_t most = 0;
    for (int64_t i = 0; i < decoder->num_layers; i++) {
        int64_t needed = attention_partial_floats(&decoder->layers[i].attention, batch);
        if (needed > most) most = needed;
    }
    return most;
}

void run_decoder(const Decoder *decoder, const Step *step, const Workspace *workspace, int64_t num_threads) {
    memset(workspace->counters, 0, decoder_counter_bytes(decoder));
    Barrier barrier = {0};
#pragma omp parallel num_threads(num_threads)
    {
        Workspace w = *workspace;
        Member me = {w.scratch + omp_get_thread_num() * w.thread_floats, omp_get_num_threads(), &barrier};
        for (int64_t i = 0; i < decoder->num_layers; i++)
            run_layer(decoder->layers + i, step, &w, &me, w.counters + NUM_LAYER_COUNTERS * i);
        LinearInput input = {.rows = w.hidden, .m = step->num_last, .row_stride = decoder->hidden,
                             .row_ids = step->last_rows, .norm = decoder->final_norm, .norm_eps = decoder->final_norm_eps};
        linear_tasks(&decoder->head, &input, w.logits, 0, me.scratch, me.team,
                     w.counters + NUM_LAYER_COUNTERS * decoder->num_layers);
    }
}
