/* The loops of `native.py`, for float and double. Lanes of WIDTH quantiles side by side keep their sums in registers, and no sum
   is reordered: the same machine gives the same bits. NaN stays NaN in every figure it enters. */

#include <stdint.h>

#define WIDTH 16

/* rows of q [n] and y [m], levels tau [n] -> mean loss of all pairs [rows], and how it falls as each quantile rises [rows, n] */
#define QUANTILE_HUBER(NAME, T)                                                                                                \
    void NAME(const T *q, const T *y, const T *tau, T *loss, T *slopes, int64_t rows, int64_t n, int64_t m, double width) {    \
        const T kappa = (T)width, each = (T)1 / ((T)m * (T)n), half = width > 0 ? (T)0.5 : (T)0;                               \
        for (int64_t r = 0; r < rows; r++, q += n, y += m, slopes += n) {                                                      \
            T whole = 0;                                                                                                       \
            for (int64_t first = 0; first < n; first += WIDTH) {                                                               \
                const int64_t many = n - first < WIDTH ? n - first : WIDTH;                                                    \
                T theta[WIDTH] = {0}, level[WIDTH] = {0}, rest[WIDTH] = {0}, sum[WIDTH] = {0}, fall[WIDTH] = {0};              \
                for (int64_t k = 0; k < many; k++) theta[k] = q[first + k], level[k] = tau[first + k], rest[k] = 1 - level[k]; \
                for (int64_t j = 0; j < m; j++)                                                                                \
                    for (int k = 0; k < WIDTH; k++) {                                                                          \
                        const T error = y[j] - theta[k];                                                                       \
                        const T sign = error > 0 ? (T)1 : error < 0 ? (T)-1 : error;                                           \
                        const T inner = error > kappa ? kappa : error < -kappa ? -kappa : error;                               \
                        const T slope = width > 0 ? inner : sign;                                                              \
                        const T heavy = (error > 0 ? level[k] : rest[k]) * slope;                                              \
                        sum[k] += heavy * (error - half * slope);                                                              \
                        fall[k] += heavy;                                                                                      \
                    }                                                                                                          \
                for (int64_t k = 0; k < many; k++) {                                                                           \
                    whole += sum[k];                                                                                           \
                    slopes[first + k] = each * fall[k];                                                                        \
                }                                                                                                              \
            }                                                                                                                  \
            loss[r] = each * whole;                                                                                            \
        }                                                                                                                      \
    }

QUANTILE_HUBER(quantile_huber_float, float)
QUANTILE_HUBER(quantile_huber_double, double)

/* rows of x [n], n <= 256, in order, NaN last: WIDTH rows at once through Batcher's merge-exchange network (Knuth, TAOCP 5.2.2 M) */
#define SORT_ROWS(NAME, T)                                                                                                     \
    void NAME(const T *x, T *sorted, int64_t rows, int64_t n) {                                                                \
        T lane[256][WIDTH];                                                                                                    \
        int64_t top = 1;                                                                                                       \
        while (top < n) top *= 2;                                                                                              \
        for (int64_t first = 0; first < rows; first += WIDTH, x += WIDTH * n, sorted += WIDTH * n) {                           \
            const int64_t many = rows - first < WIDTH ? rows - first : WIDTH;                                                  \
            for (int64_t i = 0; i < n; i++)                                                                                    \
                for (int64_t k = 0; k < WIDTH; k++) lane[i][k] = k < many ? x[k * n + i] : (T)0;                               \
            for (int64_t p = top / 2; p > 0; p /= 2)                                                                           \
                for (int64_t q = top / 2, r = 0, d = p;; d = q - p, q /= 2, r = p) {                                           \
                    for (int64_t i = 0; i < n - d; i++)                                                                        \
                        if ((i & p) == r)                                                                                      \
                            for (int k = 0; k < WIDTH; k++) {                                                                  \
                                const T a = lane[i][k], b = lane[i + d][k];                                                    \
                                const int wrong = (a > b) | (a != a);                                                          \
                                lane[i][k] = wrong ? b : a;                                                                    \
                                lane[i + d][k] = wrong ? a : b;                                                                \
                            }                                                                                                  \
                    if (q == p) break;                                                                                         \
                }                                                                                                              \
            for (int64_t k = 0; k < many; k++)                                                                                 \
                for (int64_t i = 0; i < n; i++) sorted[k * n + i] = lane[i][k];                                                \
        }                                                                                                                      \
    }

SORT_ROWS(sort_rows_float, float)
SORT_ROWS(sort_rows_double, double)

/* Particles of the return's law, backwards over rows [steps, envs] with m particles each; see `functional.returns`. at [steps + 1,
   envs, n] are the laws' locations, ends [n] the upper ends of their cells; both noises [steps, envs, m]. */
#define SAMPLE_REPLACEMENT(NAME, T)                                                                                            \
    void NAME(const T *reward, const T *at, const T *ends, const T *follow, const T *level, T *made, const uint8_t *terminated, \
              const uint8_t *goes_on, const uint8_t *valid, int64_t steps, int64_t envs, int64_t n, int64_t m, double gamma,   \
              double lambda) {                                                                                                 \
        const T discount = (T)gamma, onward = (T)lambda;                                                                       \
        for (int64_t row = steps * envs - 1; row >= 0; row--) {                                                                \
            const T *own = at + row * n, *next = own + envs * n, *later = made + (row + envs) * m;                             \
            const int last = row >= (steps - 1) * envs;                                                                        \
            for (int64_t first = 0; first < m; first += WIDTH) {                                                               \
                const int many = m - first < WIDTH ? (int)(m - first) : WIDTH;                                                 \
                const T *u = level + row * m + first, *v = follow + row * m + first;                                           \
                T chance[WIDTH] = {0};                                                                                         \
                int32_t cell[WIDTH] = {0};                                                                                     \
                for (int k = 0; k < many; k++) chance[k] = u[k];                                                               \
                for (int64_t i = 0; i < n - 1; i++)                                                                            \
                    for (int k = 0; k < WIDTH; k++) cell[k] += ends[i] <= chance[k];                                           \
                for (int k = 0; k < many; k++) {                                                                               \
                    T reached = terminated[row] ? (T)0 : next[cell[k]];                                                        \
                    if (!last && goes_on[row] && v[k] < onward) reached = later[first + k];                                    \
                    made[row * m + first + k] = valid[row] ? reward[row] + discount * reached : own[cell[k]];                  \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
    }

SAMPLE_REPLACEMENT(sample_replacement_float, float)
SAMPLE_REPLACEMENT(sample_replacement_double, double)
