/* Causal attention over paged K/V with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
 *
 * Keys are taken in tiles whose borders are absolute positions, and a key that a query must not see adds exactly nothing.
 * So the bits of a query's result depend on its own context alone: not on the chunk, the batch or the page size.
 */
#include "attention.h"

#include "products.h"

#define TILE 64      /* keys */
#define MAX_QUERIES 96 /* rows of one task: queries times the heads that share a K/V head */
#define PADDED(n) (((n) + PANEL - 1) / PANEL * PANEL)

typedef struct {
    float *keys;    /* [key_dim, TILE] */
    float *values;  /* [TILE, padded value_dim] */
    float *query;   /* [rows, key_dim] */
    float *scores;  /* [rows, TILE] */
    float *sums;    /* [rows, padded value_dim] */
    float *highest; /* [rows] */
    float *weight;  /* [rows] */
} Scratch;

static int64_t queries_per_task(const AttentionLayer *layer) {
    int64_t group = layer->heads / layer->kv_heads;
    return group > MAX_QUERIES ? 1 : MAX_QUERIES / group;
}

static int64_t max_rows(const AttentionLayer *layer) {
    return queries_per_task(layer) * (layer->heads / layer->kv_heads);
}

int64_t attention_scratch_floats(const AttentionLayer *layer) {
    int64_t rows = max_rows(layer), value_dim = PADDED(layer->value_dim);
    return TILE * (layer->key_dim + value_dim) + rows * (layer->key_dim + TILE + value_dim + 2);
}

static Scratch split_scratch(const AttentionLayer *layer, float *memory) {
    int64_t rows = max_rows(layer), value_dim = PADDED(layer->value_dim);
    Scratch s;
    s.keys = memory, memory += TILE * layer->key_dim;
    s.values = memory, memory += TILE * value_dim;
    s.query = memory, memory += rows * layer->key_dim;
    s.scores = memory, memory += rows * TILE;
    s.sums = memory, memory += rows * value_dim;
    s.highest = memory, memory += rows;
    s.weight = memory;
    return s;
}

typedef float eight __attribute__((vector_size(32)));

/* out[d][i] = rows[i][d] for 8 rows and 8 dimensions. */
INLINE void transpose_8x8(const float *const rows[8], int64_t d, float *out) {
    eight r[8], s[8];
    for (int i = 0; i < 8; i++) memcpy(&r[i], rows[i] + d, sizeof r[i]);
    for (int i = 0; i < 8; i += 2) {
        s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = __builtin_shufflevector(s[i + j], s[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
            r[i + 2 * j + 1] = __builtin_shufflevector(s[i + j], s[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        eight low = __builtin_shufflevector(r[j], r[4 + j], 0, 1, 2, 3, 8, 9, 10, 11);
        eight high = __builtin_shufflevector(r[j], r[4 + j], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(out + j * TILE, &low, sizeof low);
        memcpy(out + (4 + j) * TILE, &high, sizeof high);
    }
}

/* Keys first to first + TILE of one head, transposed, and their values; what lies beyond `end` is zero, because a page
 * may hold anything there and 0 * NaN is NaN. */
static void gather_tile(const AttentionLayer *layer, const Batch *batch, int64_t request, int64_t head, int64_t first,
                        int64_t end, const Scratch *s) {
    const int64_t *table = batch->tables + batch->table_starts[request];
    int64_t num = end - first < TILE ? end - first : TILE, value_dim = PADDED(layer->value_dim);
    int64_t page = first / batch->page_size, offset = first % batch->page_size;
    const float *rows[TILE];
    for (int64_t i = 0; i < num; i++) {
        int64_t slot = (table[page] * batch->page_size + offset) * layer->kv_heads + head;
        rows[i] = layer->keys + slot * layer->key_dim;
        float *value = s->values + i * value_dim;
        memcpy(value, layer->values + slot * layer->value_dim, layer->value_dim * sizeof(float));
        for (int64_t d = layer->value_dim; d < value_dim; d++) value[d] = 0.0f;
        if (++offset == batch->page_size) offset = 0, page++;
    }
    if (num < TILE) {
        memset(s->values + num * value_dim, 0, (TILE - num) * value_dim * sizeof(float));
        memset(s->keys, 0, TILE * layer->key_dim * sizeof(float));
    }
    int64_t whole = num / 8 * 8, dims = layer->key_dim / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int64_t d = 0; d < dims; d += 8) transpose_8x8(rows + i, d, s->keys + d * TILE + i);
    for (int64_t i = 0; i < num; i++)
        for (int64_t d = i < whole ? dims : 0; d < layer->key_dim; d++) s->keys[d * TILE + i] = rows[i][d];
}

INLINE void score_rows(const int rows, const AttentionLayer *layer, const Scratch *s, int64_t row) {
    for (int64_t column = 0; column < TILE; column += PANEL) {
        vec acc[MAX_ROWS][2] = {};
        multiply(rows, s->query + row * layer->key_dim, layer->key_dim, s->keys + column, TILE, layer->key_dim, acc, 0, 0);
        for (int i = 0; i < rows; i++)
            for (int half = 0; half < 2; half++) {
                vec x = acc[i][half] * layer->scaling;
                if (layer->softcap > 0) {
                    vec doubled = 2.0f / layer->softcap * x;
                    x = layer->softcap * (1.0f - 2.0f / (vexp(doubled) + 1.0f)); /* softcap * tanh(x / softcap) */
                }
                store(s->scores + (row + i) * TILE + column + half * LANES, x);
            }
    }
}

/* Scores become weights relative to the row's highest score so far; returns the factor for what was summed before. */
static float soften(float *scores, int64_t first, int64_t low, int64_t high, float *highest, float *weight) {
    vec top = splat(-INFINITY), total = {};
    for (int64_t j = 0; j < TILE && first + j < low; j++) scores[j] = -INFINITY;
    for (int64_t j = high > first ? high - first : 0; j < TILE; j++) scores[j] = -INFINITY;
    for (int64_t j = 0; j < TILE; j += LANES) top = vmax(top, load(scores + j));
    float now = hmax(top);
    if (now < *highest) now = *highest;
    if (now == -INFINITY) { /* nothing to see yet */
        memset(scores, 0, TILE * sizeof(float));
        return 1.0f;
    }
    for (int64_t j = 0; j < TILE; j += LANES) {
        vec p = vexp(load(scores + j) - now);
        total += p;
        store(scores + j, p);
    }
    float factor = *highest == -INFINITY ? 0.0f : vexp(splat(*highest - now))[0];
    *weight = *weight * factor + hsum(total);
    *highest = now;
    return factor;
}

INLINE void sum_rows(const int rows, const Scratch *s, int64_t value_dim, int64_t row, const float *factors) {
    for (int64_t column = 0; column < value_dim; column += PANEL) {
        vec acc[MAX_ROWS][2];
        float *sums = s->sums + row * value_dim + column;
        for (int i = 0; i < rows; i++) {
            acc[i][0] = load(sums + i * value_dim) * factors[i];
            acc[i][1] = load(sums + i * value_dim + LANES) * factors[i];
        }
        multiply(rows, s->scores + row * TILE, TILE, s->values + column, value_dim, TILE, acc, 0, 0);
        for (int i = 0; i < rows; i++) {
            store(sums + i * value_dim, acc[i][0]);
            store(sums + i * value_dim + LANES, acc[i][1]);
        }
    }
}

typedef struct {
    int64_t request, head, first_query, num_queries; /* queries counted from the request's first */
} Task;

static void attend(const AttentionLayer *layer, const Batch *batch, const Task *task, const float *query, float *out,
                   const Scratch *s) {
    int64_t group = layer->heads / layer->kv_heads, rows = task->num_queries * group;
    int64_t value_dim = PADDED(layer->value_dim), end = batch->context_lens[task->request];
    int64_t token = batch->query_starts[task->request] + task->first_query;
    int64_t position = end - (batch->query_starts[task->request + 1] - token); /* of the task's first query */
    for (int64_t r = 0; r < rows; r++) {
        const float *q = query + (token + r / group) * layer->query_stride + (task->head * group + r % group) * layer->key_dim;
        memcpy(s->query + r * layer->key_dim, q, layer->key_dim * sizeof(float));
        s->highest[r] = -INFINITY, s->weight[r] = 0.0f;
    }
    memset(s->sums, 0, rows * value_dim * sizeof(float));
    int64_t window = layer->window > 0 ? layer->window : INT64_MAX / 2;
    int64_t first = position - window + 1 > 0 ? (position - window + 1) / TILE * TILE : 0;
    for (int64_t stop = position + task->num_queries; first < stop; first += TILE) {
        gather_tile(layer, batch, task->request, task->head, first, stop, s);
        int64_t pieces = (rows + MAX_ROWS - 1) / MAX_ROWS;
        for (int64_t p = 0, row = 0; p < pieces; p++) {
            int num = piece(rows, pieces, p);
            float factors[MAX_ROWS];
            WITH_ROWS(num, score_rows(ROWS, layer, s, row));
            for (int i = 0; i < num; i++) {
                int64_t at = position + (row + i) / group;
                factors[i] = soften(s->scores + (row + i) * TILE, first, at - window + 1, at + 1, s->highest + row + i,
                                    s->weight + row + i);
            }
            WITH_ROWS(num, sum_rows(ROWS, s, value_dim, row, factors));
            row += num;
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float *o = out + ((token + r / group) * layer->heads + task->head * group + r % group) * layer->value_dim;
        for (int64_t d = 0; d < layer->value_dim; d++) o[d] = s->sums[r * value_dim + d] / s->weight[r];
    }
}

void attention_tasks(const AttentionLayer *layer, const Batch *batch, const float *query, float *out, float *scratch,
                     Counter *counter) {
    Scratch s = split_scratch(layer, scratch);
    int64_t wanted = take_task(counter), index = 0, most = queries_per_task(layer);
    for (int64_t request = 0; request < batch->num_requests; request++) {
        int64_t num = batch->query_starts[request + 1] - batch->query_starts[request];
        int64_t blocks = (num + most - 1) / most, num_tasks = blocks * layer->kv_heads;
        for (; wanted < index + num_tasks; wanted = take_task(counter)) {
            /* The last queries see the most keys: they go first, so that no thread is left with a long task. */
            int64_t block = blocks - 1 - (wanted - index) / layer->kv_heads;
            Task task = {request, (wanted - index) % layer->kv_heads, block * most, most};
            if (task.first_query + most > num) task.num_queries = num - task.first_query;
            attend(layer, batch, &task, query, out, &s);
        }
        index += num_tasks;
    }
}

/* One layer's attention on its own. scratch: num_threads times attention_scratch_floats. */
void run_attention(const AttentionLayer *layer, const Batch *batch, const float *query, float *out, float *scratch,
                   int64_t num_threads) {
    Counter counter = {0};
    int64_t own = 0, size = attention_scratch_floats(layer);
#pragma omp parallel num_threads(num_threads)
    {
        int64_t thread;
#pragma omp atomic capture
        thread = own++;
        attention_tasks(layer, batch, query, out, scratch + thread * size, &counter);
    }
}
