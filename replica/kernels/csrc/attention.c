/* Causal attention over paged K/V with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022, 2023).
 *
 * Keys are taken in parts of tiles whose borders are absolute positions; each part has a softmax of its own, and parts are
 * merged in order. A key that a query must not see adds exactly nothing. So the bits of a query's result depend on its own
 * context alone: not on the chunk, the batch, the page size or on how many threads share the context.
 */
#include "attention_tile.h"

typedef struct {
    Tile tile;
    float *query;  /* [rows, key_dim] */
    float *scores; /* [MAX_ROWS, TILE] */
    Softmax part, all;
} Scratch;

/* Queries first_query and on of a request, for some adjacent K/V heads, over keys first_key to end_key. */
typedef struct {
    int64_t request, first_head, num_heads, first_query, num_queries, first_key, end_key;
} Task;

static int64_t group_of(const AttentionLayer *layer) { return layer->heads / layer->kv_heads; }

static int64_t queries_per_task(const AttentionLayer *layer) {
    return group_of(layer) > MAX_QUERIES ? 1 : MAX_QUERIES / group_of(layer);
}

/* A single query takes several K/V heads at once, because they lie side by side in memory. */
static int64_t heads_per_task(const AttentionLayer *layer) {
    int64_t heads = TILE_FLOATS / (TILE * (layer->key_dim + PADDED(layer->value_dim)));
    return heads < 1 ? 1 : heads > layer->kv_heads ? layer->kv_heads : heads;
}

static int64_t max_rows(const AttentionLayer *layer) {
    int64_t many = queries_per_task(layer) * group_of(layer), one = heads_per_task(layer) * group_of(layer);
    return many > one ? many : one;
}

int64_t attention_scratch_floats(const AttentionLayer *layer) {
    int64_t rows = max_rows(layer), value_dim = PADDED(layer->value_dim);
    return heads_per_task(layer) * TILE * (layer->key_dim + value_dim) + rows * (layer->key_dim + 2 * (value_dim + 2)) +
           MAX_ROWS * TILE;
}

static float *take(float **memory, int64_t num) {
    float *taken = *memory;
    *memory += num;
    return taken;
}

static Softmax take_softmax(float **memory, int64_t rows, int64_t value_dim) {
    Softmax s = {take(memory, rows * value_dim), take(memory, rows), take(memory, rows)};
    return s;
}

static Scratch split_scratch(const AttentionLayer *layer, float *memory) {
    int64_t rows = max_rows(layer), heads = heads_per_task(layer), value_dim = PADDED(layer->value_dim);
    Scratch s;
    s.tile.keys = take(&memory, heads * TILE * layer->key_dim);
    s.tile.values = take(&memory, heads * TILE * value_dim);
    s.scores = take(&memory, MAX_ROWS * TILE);
    s.query = take(&memory, rows * layer->key_dim);
    s.part = take_softmax(&memory, rows, value_dim);
    s.all = take_softmax(&memory, rows, value_dim);
    return s;
}

static int64_t first_visible(const AttentionLayer *layer, int64_t position) {
    return layer->window > 0 && position >= layer->window ? position - layer->window + 1 : 0;
}

static void clear(const Softmax *s, int64_t rows, int64_t value_dim) {
    memset(s->sums, 0, rows * value_dim * sizeof(float));
    memset(s->weight, 0, rows * sizeof(float));
    for (int64_t r = 0; r < rows; r++) s->highest[r] = -INFINITY;
}

/* Never inlined: the compiler may fuse the two products in either order, and every caller must get the same bits. */
__attribute__((noinline)) static void add_part(const Softmax *all, const Softmax *part, int64_t rows, int64_t value_dim) {
    for (int64_t r = 0; r < rows; r++) {
        if (part->highest[r] == -INFINITY) continue; /* the row sees nothing of this part */
        float highest = all->highest[r] > part->highest[r] ? all->highest[r] : part->highest[r];
        float old = all->highest[r] == -INFINITY ? 0.0f : vexp(splat(all->highest[r] - highest))[0];
        float new = vexp(splat(part->highest[r] - highest))[0];
        all->weight[r] = all->weight[r] * old + part->weight[r] * new;
        all->highest[r] = highest;
        for (int64_t d = r * value_dim; d < (r + 1) * value_dim; d += LANES)
            store(all->sums + d, load(all->sums + d) * old + load(part->sums + d) * new);
    }
}

/* out: the rows of one query's or one head's group, [rows, value_dim] */
static void write_rows(const AttentionLayer *layer, const Softmax *s, int64_t first, int64_t rows, float *out) {
    int64_t padded = PADDED(layer->value_dim);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < layer->value_dim; d++)
            out[r * layer->value_dim + d] = s->sums[(first + r) * padded + d] / s->weight[first + r];
}

/* Adds one tile to `s` for the rows of one head. position: of the task's first query. */
static void add_tile(const AttentionLayer *layer, const Scratch *scratch, int64_t head, int64_t rows, int64_t first,
                     int64_t position) {
    int64_t group = group_of(layer), value_dim = PADDED(layer->value_dim), pieces = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const float *keys = scratch->tile.keys + head * TILE * layer->key_dim;
    const float *values = scratch->tile.values + head * TILE * value_dim;
    for (int64_t p = 0, row = 0; p < pieces; p++) {
        int num = piece(rows, pieces, p);
        int64_t at = head * rows + row;
        float factors[MAX_ROWS], *sums = scratch->part.sums + at * value_dim;
        WITH_ROWS(num, score_rows(ROWS, layer, scratch->query + at * layer->key_dim, keys, scratch->scores));
        for (int i = 0; i < num; i++) {
            int64_t own = position + (row + i) / group;
            factors[i] = soften(scratch->scores + i * TILE, first, first_visible(layer, own), own + 1,
                                scratch->part.highest + at + i, scratch->part.weight + at + i);
        }
        WITH_ROWS(num, sum_rows(ROWS, scratch->scores, values, value_dim, sums, factors));
        row += num;
    }
}

/* Leaves the task's result in scratch->all, rows ordered by head, query, head of the group. */
static void attend(const AttentionLayer *layer, const Batch *batch, const Task *task, const float *query, const Scratch *s) {
    int64_t group = group_of(layer), rows = task->num_queries * group, value_dim = PADDED(layer->value_dim);
    int64_t token = batch->query_starts[task->request] + task->first_query;
    int64_t position = batch->context_lens[task->request] - (batch->query_starts[task->request + 1] - token);
    for (int64_t h = 0; h < task->num_heads; h++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(s->query + (h * rows + r) * layer->key_dim,
                   query + (token + r / group) * layer->query_stride + ((task->first_head + h) * group + r % group) * layer->key_dim,
                   layer->key_dim * sizeof(float));
    clear(&s->all, task->num_heads * rows, value_dim);
    for (int64_t part = task->first_key / PART * PART; part < task->end_key; part += PART) {
        clear(&s->part, task->num_heads * rows, value_dim);
        int64_t end = part + PART < task->end_key ? part + PART : task->end_key;
        for (int64_t first = part > task->first_key ? part : task->first_key / TILE * TILE; first < end; first += TILE) {
            gather_tile(layer, batch, task->request, task->first_head, task->num_heads, first, end, &s->tile);
            fetch_tile(layer, batch, task->request, task->first_head, task->num_heads, first + TILE, task->end_key);
            for (int64_t h = 0; h < task->num_heads; h++) add_tile(layer, s, h, rows, first, position);
        }
        add_part(&s->all, &s->part, task->num_heads * rows, value_dim);
    }
}

/* A request with one query shares its context among threads: the parts that it has, 0 for other requests. */
static int64_t num_parts(const AttentionLayer *layer, const Batch *batch, int64_t request) {
    if (batch->query_starts[request + 1] - batch->query_starts[request] != 1) return 0;
    int64_t end = batch->context_lens[request];
    return (end + PART - 1) / PART - first_visible(layer, end - 1) / PART;
}

static int64_t part_floats(const AttentionLayer *layer) { return layer->heads * (PADDED(layer->value_dim) + 2); }

int64_t attention_partial_floats(const AttentionLayer *layer, const Batch *batch) {
    int64_t num = 0;
    for (int64_t i = 0; i < batch->num_requests; i++) {
        int64_t parts = num_parts(layer, batch, i);
        num += parts > 1 ? parts : 0;
    }
    return num * part_floats(layer);
}

/* The results of one part: [heads, padded value_dim] and twice [heads]. */
static Softmax partial(const AttentionLayer *layer, const float *partials, int64_t index) {
    float *memory = (float *)partials + index * part_floats(layer);
    return take_softmax(&memory, layer->heads, PADDED(layer->value_dim));
}

static void one_query(const AttentionLayer *layer, const Batch *batch, int64_t request, int64_t part, int64_t parts,
                      int64_t first_head, const float *query, float *out, const Softmax *into, const Scratch *s) {
    int64_t group = group_of(layer), most = heads_per_task(layer), end = batch->context_lens[request];
    int64_t heads = layer->kv_heads - first_head < most ? layer->kv_heads - first_head : most;
    int64_t visible = first_visible(layer, end - 1), first = (visible / PART + part) * PART;
    Task task = {request, first_head, heads, 0, 1, first > visible ? first : visible, first + PART < end ? first + PART : end};
    attend(layer, batch, &task, query, s);
    int64_t row = first_head * group, rows = heads * group, value_dim = PADDED(layer->value_dim);
    if (parts == 1) {
        write_rows(layer, &s->all, 0, rows, out + (batch->query_starts[request] * layer->heads + row) * layer->value_dim);
        return;
    }
    memcpy(into->sums + row * value_dim, s->all.sums, rows * value_dim * sizeof(float));
    memcpy(into->highest + row, s->all.highest, rows * sizeof(float));
    memcpy(into->weight + row, s->all.weight, rows * sizeof(float));
}

static void many_queries(const AttentionLayer *layer, const Batch *batch, int64_t request, int64_t block, int64_t head,
                         const float *query, float *out, const Scratch *s) {
    int64_t first = batch->query_starts[request], num = batch->query_starts[request + 1] - first;
    int64_t group = group_of(layer), most = queries_per_task(layer), start = block * most;
    int64_t queries = num - start < most ? num - start : most, position = batch->context_lens[request] - num + start;
    Task task = {request, head, 1, start, queries, first_visible(layer, position), position + queries};
    attend(layer, batch, &task, query, s);
    for (int64_t q = 0; q < queries; q++)
        write_rows(layer, &s->all, q * group, group, out + ((first + start + q) * layer->heads + head * group) * layer->value_dim);
}

void attention_tasks(const AttentionLayer *layer, const Batch *batch, const float *query, float *out, float *scratch,
                     float *partials, Counter *counter) {
    Scratch s = split_scratch(layer, scratch);
    int64_t wanted = take_task(counter), index = 0, written = 0, most = queries_per_task(layer);
    int64_t per_task = heads_per_task(layer), head_tasks = (layer->kv_heads + per_task - 1) / per_task;
    for (int64_t request = 0; request < batch->num_requests; request++) {
        int64_t parts = num_parts(layer, batch, request);
        int64_t num = batch->query_starts[request + 1] - batch->query_starts[request], blocks = (num + most - 1) / most;
        int64_t num_tasks = parts ? parts * head_tasks : blocks * layer->kv_heads;
        for (; wanted < index + num_tasks; wanted = take_task(counter)) {
            int64_t task = wanted - index;
            if (parts) {
                Softmax into = partial(layer, partials, written + task / head_tasks);
                one_query(layer, batch, request, task / head_tasks, parts, task % head_tasks * per_task, query, out, &into, &s);
            } else { /* the last queries see the most keys: they go first, so that no thread is left with a long task */
                many_queries(layer, batch, request, blocks - 1 - task / layer->kv_heads, task % layer->kv_heads, query, out, &s);
            }
        }
        index += num_tasks, written += parts > 1 ? parts : 0;
    }
}

void attention_merge(const AttentionLayer *layer, const Batch *batch, float *out, const float *partials, Counter *counter) {
    int64_t wanted = take_task(counter), written = 0;
    for (int64_t request = 0; request < batch->num_requests; request++) {
        int64_t parts = num_parts(layer, batch, request);
        if (request == wanted) {
            if (parts > 1) {
                Softmax all = partial(layer, partials, written);
                for (int64_t p = 1; p < parts; p++) {
                    Softmax part = partial(layer, partials, written + p);
                    add_part(&all, &part, layer->heads, PADDED(layer->value_dim));
                }
                write_rows(layer, &all, 0, layer->heads, out + batch->query_starts[request] * layer->heads * layer->value_dim);
            }
            wanted = take_task(counter);
        }
        written += parts > 1 ? parts : 0;
    }
}

/* One layer's attention on its own. scratch: num_threads times attention_scratch_floats. */
void run_attention(const AttentionLayer *layer, const Batch *batch, const float *query, float *out, float *scratch,
                   float *partials, int64_t num_threads) {
    Counter counters[3] = {0};
    int64_t size = attention_scratch_floats(layer);
#pragma omp parallel num_threads(num_threads)
    {
        attention_tasks(layer, batch, query, out, scratch + take_task(counters + 2) * size, partials, counters);
#pragma omp barrier
        attention_merge(layer, batch, out, partials, counters + 1);
    }
}
