// Special functions: what the library of CUDA's compiler lacks. All in doubles, whatever the element type.

// A Chebyshev series over [from, to], by Clenshaw's recurrence.
template<int N> __device__ double series(const double (&c)[N], double x, double from, double to_) {
  const double y = (2 * x - from - to_) / (to_ - from);
  double a = 0, b = 0;
#pragma unroll 1
  for (int i = N - 1; i > 0; --i) { const double t = 2 * y * a - b + c[i]; b = a; a = t; }
  return y * a - b + c[0];
}

// Chebyshev coefficients, computed to 40 digits from the functions' definitions and rounded:
// I: exp(-x) I0(x), exp(-x) I1(x) / x on [0, 8]; exp(-x) sqrt(x) I(x) of 1 / x beyond.
// K: K0 + log(x / 2) I0, x (K1 - log(x / 2) I1) of x * x on [0, 4]; exp(x) sqrt(x) K(x) of 1 / x beyond 2.
// Ai: with z = 2/3 |x|^1.5, exp(z) x^0.25 Ai(x) of 1 / z right of 2; left of -2 the sine's and cosine's parts.
__device__ const double I0_SMALL[30] = {
  0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071,
  -0.02373741480589947, 0.010546460394594998, -0.004324309995050576, 0.0016394756169413357,
  -0.0005763755745385824, 0.00018850288509584165, -5.754195010082104e-5, 1.6448448070728896e-5,
  -4.4167383584587505e-6, 1.1173875391201037e-6, -2.670793853940612e-7, 6.046995022541919e-8,
  -1.300025009986248e-8, 2.6598237246823866e-9, -5.189795601635263e-10, 9.675809035373237e-11,
  -1.726826291441556e-11, 2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14,
  -1.1685332877993451e-14, 1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17,
  -4.4153416464793395e-18};
__device__ const double I0_LARGE[25] = {
  0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-5, 2.8913705208347567e-6,
  2.0489185894690638e-7, 2.266668990498178e-8, 3.3962320257083865e-9, 4.94060238822497e-10,
  1.1889147107846439e-11, -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12,
  7.180124451383666e-13, 3.8527783827421426e-13, 1.54008621752141e-14, -4.150569347287222e-14,
  -9.554846698828307e-15, 3.8116806693526224e-15, 1.7725601330565263e-15, -3.425485619677219e-16,
  -2.8276239805165836e-16, 3.461222867697461e-17, 4.46562142029676e-17, -4.830504485944182e-18,
  -7.233180487874754e-18};
__device__ const double I1_SMALL[29] = {
  0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499, 0.024726449030626516,
  -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532, 0.0005122859561685758,
  -0.00016176081582589674, 4.781565107550054e-5, -1.3273163656039436e-5, 3.4702513081376785e-6,
  -8.568720264695455e-7, 2.0032947535521353e-7, -4.445059128796328e-8, 9.381537386495773e-9,
  -1.8872497517228294e-9, 3.625590281552117e-10, -6.663489723502027e-11, 1.1736186298890901e-11,
  -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14, 7.600684294735408e-15,
  -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17, 2.7779141127610464e-18};
__device__ const double I1_LARGE[25] = {
  0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-6,
  -2.512236237870209e-7, -2.6314688468895196e-8, -3.835380385964237e-9, -5.589743462196584e-10,
  -1.8974958123505413e-11, 3.2526035830154884e-11, 1.4125807436613782e-11, 2.0356285441470896e-12,
  -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14, 4.272440016711951e-14,
  1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15, 3.3082023109209285e-16,
  2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17, 4.414348323071708e-18,
  7.517296310842105e-18};
__device__ const double K0_SMALL[10] = {
  -0.2676636966169514, 0.3442898999246285, 0.0359799365153615, 0.001264615411446926, 2.286212103119452e-5,
  2.5347910790261494e-7, 1.904516377220209e-9, 1.0349695257633625e-11, 4.2598161427910826e-14,
  1.3744654358807508e-16};
__device__ const double K0_LARGE[24] = {
  1.2201515410329777, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802, 1.39498137188765e-5,
  -1.8317555227191195e-6, 2.766813639445015e-7, -4.660489897687948e-8, 8.574034017414225e-9,
  -1.6975345093890614e-9, 3.5773972814003283e-10, -7.957489244477396e-11, 1.8559491149549264e-11,
  -4.514597883374519e-12, 1.1403405882073441e-12, -2.9800969231481784e-13, 8.032890775068375e-14,
  -2.2275133267462965e-14, 6.340076476276646e-15, -1.848593377920907e-15, 5.5120559994043335e-16,
  -1.6782311257549006e-16, 5.2103917776435543e-17, -1.6475805939842632e-17};
__device__ const double K1_SMALL[10] = {
  0.7626501136694739, -0.3531559607765449, -0.12261118082265715, -0.006975723859639864, -0.0001730288957513052,
  -2.4334061415659684e-6, -2.213387630734726e-8, -1.4114883926335278e-10, -6.666901694199329e-13,
  -2.427449850519366e-15};
__device__ const double K1_LARGE[24] = {
  1.3603130952422213, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162,
  -1.936197974166083e-5, 2.406484947837217e-6, -3.5019606030878126e-7, 5.7410841254500495e-8,
  -1.0345762465678097e-8, 2.0150497551970347e-9, -4.1903547593419254e-10, 9.218315187605315e-11,
  -2.129967838427791e-11, 5.139639673482343e-12, -1.2891739609498229e-12, 3.348419666052243e-13,
  -8.976705182010146e-14, 2.4771544242195988e-14, -7.0198370892147685e-15, 2.038703166239861e-15,
  -6.057047270643018e-16, 1.8380935752430455e-16, -5.689462849193648e-17, 1.7940510478863572e-17};
__device__ const double AI_RIGHT[24] = {
  0.2776956095117059, -0.0041729675620459225, 0.0002066958601399801, -1.7280997841068203e-5,
  1.9280521667971564e-6, -2.605774398776261e-7, 4.051516883512394e-8, -7.02224044098622e-9,
  1.3286081997701024e-9, -2.7035580371292874e-10, 5.852297782838995e-11, -1.336358441651975e-11,
  3.1978547149289137e-12, -7.976813559559598e-13, 2.0651347541109653e-13, -5.528999782159776e-14,
  1.52616561901018e-14, -4.3319793049558025e-15, 1.2616239319898739e-15, -3.7626070399357564e-16,
  1.1471616156264608e-16, -3.570144365109205e-17, 1.1326462271400209e-17, -3.658761589006898e-18};
__device__ const double AI_SINE[28] = {
  0.9967891298446905, -0.004130128828703613, -0.0008239390724262582, 9.509829158181969e-5,
  -2.3365304431187083e-6, -1.6116779859977744e-6, 4.487180726718197e-7, -6.185570986179103e-8,
  -1.5012061118205175e-9, 3.8751690065229354e-9, -1.3699662181035856e-9, 2.892451570668312e-10,
  -2.1339590327825283e-11, -1.4017215305078636e-11, 8.591549662340319e-12, -2.9687360440168995e-12,
  6.81279530739865e-13, -5.272200836685776e-14, -4.633120472933449e-14, 3.261095614883203e-14,
  -1.3546464150143041e-14, 4.054293518787303e-15, -7.314298253380002e-16, -8.655096500438632e-17,
  1.5758915396007814e-16, -9.084968957824233e-17, 3.7342513667341716e-17, -1.1561423122439958e-17};
__device__ const double AI_COSINE[31] = {
  0.01719270774281383, 0.016646129107245566, -0.0006058399030286324, -4.351724661207177e-5,
  1.4122037782438825e-5, -1.7354284827780543e-6, -1.7235324161013425e-8, 7.141283765907032e-8,
  -2.1544757990736134e-8, 3.59475421295276e-9, -2.8115865380255945e-11, -2.3583172356113435e-10,
  1.0394805405600702e-10, -2.8031981454794624e-11, 4.228170350760725e-12, 5.32711903346175e-13,
  -6.997932799064573e-13, 3.2000923126492124e-13, -1.0001061518912412e-13, 2.0021827696491638e-14,
  3.4809523460018365e-16, -2.729968361306346e-15, 1.6376134006050869e-15, -6.631858047670741e-16,
  1.9818223696813254e-16, -3.4651389201644127e-17, -6.15027064960168e-18, 9.42974997305827e-18,
  -5.545882868476645e-18, 2.380396496561189e-18, -7.867830665908344e-19};

// -- Bessel functions --------------------------------------------------------------------------------------

__device__ double scaled_i0(double x) {  // exp(-|x|) I0(x)
  x = fabs(x);
  return x <= 8 ? series(I0_SMALL, x, 0, 8) : series(I0_LARGE, 1 / x, 0, 0.125) / sqrt(x);
}
__device__ double scaled_i1(double x) {  // exp(-|x|) I1(x)
  const double s = fabs(x);
  return copysign(s <= 8 ? s * series(I1_SMALL, s, 0, 8) : series(I1_LARGE, 1 / s, 0, 0.125) / sqrt(s), x);
}
template<class A> __device__ A bessel_i0e(A x) { return (A)scaled_i0(x); }
template<class A> __device__ A bessel_i1e(A x) { return (A)scaled_i1(x); }
template<class A> __device__ A bessel_i0(A x) { return (A)(isinf((double)x) ? (double)INF : exp(fabs((double)x)) * scaled_i0(x)); }
template<class A> __device__ A bessel_i1(A x) { return (A)(isinf((double)x) ? (double)x : exp(fabs((double)x)) * scaled_i1(x)); }
template<class A> __device__ A bessel_k0(A a, bool scaled_) {
  const double x = a;
  if (x == 0) return (A)INF;
  if (!(x > 0)) return (A)NAN;
  if (x > 2) return (A)((scaled_ ? 1.0 : exp(-x)) * series(K0_LARGE, 1 / x, 0, 0.5) / sqrt(x));
  return (A)((scaled_ ? exp(x) : 1.0) * (series(K0_SMALL, x * x, 0, 4) - log(x / 2) * exp(x) * scaled_i0(x)));
}
template<class A> __device__ A bessel_k1(A a, bool scaled_) {
  const double x = a;
  if (x == 0) return (A)INF;
  if (!(x > 0)) return (A)NAN;
  if (x > 2) return (A)((scaled_ ? 1.0 : exp(-x)) * series(K1_LARGE, 1 / x, 0, 0.5) / sqrt(x));
  return (A)((scaled_ ? exp(x) : 1.0) * (series(K1_SMALL, x * x, 0, 4) / x + log(x / 2) * exp(x) * scaled_i1(x)));
}
template<class A> __device__ A bessel_spherical(A a) {  // sin(x) / x
  const double x = a;
  return (A)(isinf(x) ? 0.0 : x == 0 ? 1.0 : sin(x) / x);
}
template<class A> __device__ A airy(A a) {
  const double x = a, z = 2.0 / 3 * fabs(x) * sqrt(fabs(x)), root = sqrt(sqrt(fabs(x)));
  if (isinf(x) || x != x) return (A)NAN;
  if (x > 2) return (A)(exp(-z) / root * series(AI_RIGHT, 1 / z, 0, 0.5303300858899106));
  if (x < -2) {
    const double t = z + 0.78539816339744830962;
    const double f = series(AI_SINE, 1 / z, 0, 0.5303300858899106), g = series(AI_COSINE, 1 / z, 0, 0.5303300858899106);
    return (A)((f * sin(t) - g * cos(t)) * 0.56418958354775628695 / root);
  }
  const double cube = x * x * x;  // Maclaurin's series of the two solutions
  double f = 0.35502805388781723926, g = 0.25881940379280679840 * x, sum = f - g;
  for (int k = 3; k < 60; k += 3) { f *= cube / (k * (k - 1.0)); g *= cube / (k * (k + 1.0)); sum += f - g; }
  return (A)sum;
}

// -- of the gamma function -----------------------------------------------------------------------------------

// Hurwitz's zeta: the first terms, then Euler and Maclaurin's sum of the rest.
__device__ double hurwitz(double s, double q) {
  if (s == 1) return INF;
  if (!(s > 1) || q != q) return NAN;
  if (q <= 0) {
    if (q == floor(q)) return INF;
    if (s != floor(s)) return NAN;
  }
  double sum = 0;
  for (int i = 0; i < 12 || q < 12; ++i, q += 1) {
    const double term = pow(q, -s);
    sum += term;
    if (q > 1 && term < sum * 1e-17) return sum;
  }
  const double last = pow(q, -s);
  sum += q * last / (s - 1) + 0.5 * last;
  const double b[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000.0,
                      1.0 / 74724249600.0, -3617.0 / 10670622842880000.0};
  double factor = s * last / q;
  for (int k = 0; k < 8; ++k) {
    sum += b[k] * factor;
    factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / (q * q);
  }
  return sum;
}
template<class A> __device__ A zeta_(A s, A q) { return (A)hurwitz(s, q); }
template<class A> __device__ A polygamma_(A x, i64 n) {
  if (n == 0) return digamma_(x);
  if (n == 1 && isinf((double)x)) return (A)(x > 0 ? 0.0 : (double)NAN);
  return (A)((n % 2 ? 1 : -1) * exp(lgamma(n + 1.0)) * hurwitz(n + 1.0, x));
}

// The regularized incomplete gamma functions: a series below the mean, a continued fraction above it.
__device__ double gamma_below(double a, double x) {
  double term = 1 / a, sum = term;
  for (int n = 1; n < 20000 && term > sum * 1e-17; ++n) { term *= x / (a + n); sum += term; }
  return sum * exp(a * log(x) - x - lgamma(a));
}
__device__ double gamma_above(double a, double x) {  // Lentz's way
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 20000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    const double step = c * d;
    h *= step;
    if (fabs(step - 1) < 1e-16) break;
  }
  return h * exp(a * log(x) - x - lgamma(a));
}
template<class A> __device__ A incomplete_gamma(A a_, A x_, bool above) {
  const double a = a_, x = x_;
  double below;
  if (x < 0 || a < 0 || a != a || x != x) return (A)NAN;
  if (a == 0) below = x > 0 ? 1.0 : (double)NAN;
  else if (x == 0) below = 0;
  else if (isinf(a)) below = isinf(x) ? (double)NAN : 0.0;
  else if (isinf(x)) below = 1;
  else if (x > a + 1) return (A)(above ? gamma_above(a, x) : 1 - gamma_above(a, x));
  else below = gamma_below(a, x);
  return (A)(above ? 1 - below : below);
}

// -- of the normal distribution and logarithms ------------------------------------------------------------------

template<class A> __device__ A erfcx_(A x) { return (A)erfcx((double)x); }
template<class A> __device__ A ndtri_(A p) { return (A)normcdfinv((double)p); }
template<class A> __device__ A log_ndtr_(A a) {
  const double x = a, t = x * 0.70710678118654752440;
  return (A)(x < -1 ? log(erfcx(-t) / 2) - t * t : log1p(-erfc(t) / 2));
}
template<class A> __device__ A entr_(A x) { return x != x ? x : x > 0 ? -x * log_(x) : x == 0 ? A(0) : A(-INF); }

// -- orthogonal polynomials: p(0) = 1, p(1), and the next of the two before -----------------------------------------

// A degree as a whole number; one that none can hold (NaN, infinity) is negative, as in C++ on x86.
template<class A> __device__ i64 degree_of(A n) { return fabs((double)n) < 9223372036854775808.0 ? (i64)n : -1; }
template<class F> __device__ double climb(i64 n, double first, F next) {
  if (n < 0) return 0;
  double p = 1, q = first;
  if (n == 0) return p;
  for (i64 k = 1; k < n && q == q; ++k) { const double r = next(k, p, q); p = q; q = r; }
  return q;
}
// The four kinds of Chebyshev's, by what p(1) is less than 2 x; inside (-1, 1) by angles, which long sums do not spoil;
// at -1 and 1 in one step, whatever the degree.
template<class A> __device__ A chebyshev(A a, A n_, int kind, bool shifted) {
  const double x = shifted ? 2 * (double)a - 1 : (double)a;
  const i64 n = degree_of(n_);
  if (n > (kind == 0 ? 6 : 8) && fabs(x) < 1) {
    const double t = acos(x);
    if (kind == 0) return (A)cos(n * t);
    if (kind == 1) return (A)(sin((n + 1) * t) / sin(t));
    if (kind == 2) return (A)(cos((n + 0.5) * t) / cos(t / 2));
    return (A)(sin((n + 0.5) * t) / sin(t / 2));
  }
  if (n >= 0 && fabs(x) == 1) {
    const double size = kind == 0 || (kind == 2) == (x > 0) && kind > 1 ? 1.0 : kind == 1 ? n + 1.0 : 2.0 * n + 1;
    return (A)(x < 0 && n % 2 ? -size : size);
  }
  const double first = kind == 0 ? x : kind == 1 ? 2 * x : kind == 2 ? 2 * x - 1 : 2 * x + 1;
  return (A)climb(n, first, [=](i64, double p, double q) { return 2 * x * q - p; });
}
template<class A> __device__ A hermite(A a, A n, double scale) {  // 2: the physicists', 1: the probabilists'
  const double x = a;
  return (A)climb(degree_of(n), scale * x, [=](i64 k, double p, double q) { return scale * (x * q - k * p); });
}
template<class A> __device__ A laguerre(A a, A n) {
  const double x = a;
  return (A)climb(degree_of(n), 1 - x, [=](i64 k, double p, double q) { return ((2 * k + 1 - x) * q - k * p) / (k + 1); });
}
template<class A> __device__ A legendre(A a, A n) {
  const double x = a;
  return (A)climb(degree_of(n), x, [=](i64 k, double p, double q) { return ((2 * k + 1) * x * q - k * p) / (k + 1); });
}

// -- the parts of a floating-point number --------------------------------------------------------------------------

template<class A> __device__ A fraction(A x) { int e; return (A)frexp((double)x, &e); }
template<class A> __device__ i32 exponent(A x) {
  int e = 0;
  if (is_finite(x)) frexp((double)x, &e);
  return e;
}
__device__ __forceinline__ float next_after(float a, float b) { return nextafterf(a, b); }
__device__ __forceinline__ double next_after(double a, double b) { return nextafter(a, b); }
template<class N> __device__ float next_narrow(float a, float b) {  // of 16-bit floats: the bits count up and down
  if (a != a || b != b) return NAN;
  if (a == b) return b;
  N x = to<N>(a);
  if (a == 0) { x.bits = b > 0 ? 1 : 0x8001; return widen(x); }
  x.bits += (b > a) == (a > 0) ? 1 : -1;
  return widen(x);
}
