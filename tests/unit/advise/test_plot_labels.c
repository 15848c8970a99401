/* test_plot_labels.c - tests the places of labels in plots: inside the area, and never over a point
 * or another label. */
#include "advise/plot_labels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { POINTS = 12 };

static const rf_plot_area LINEAR = {
    .left = 0.1, .right = 0.9, .bottom = 0.1, .top = 0.9, .width = 1000, .height = 600, .x1 = 100, .y1 = 50};

static double part(double at, double from, double to, bool is_log) {
  return is_log ? log(at / from) / log(to / from) : (at - from) / (to - from);
}

static bool apart(double a, double wide_a, double b, double wide_b) {
  return a >= b + wide_b || b >= a + wide_a;
}

/* Returns the number of placed labels, and fails if a label covers something. */
static int check(const rf_plot_area *area, const rf_plot_label *label, int count) {
  double wide = (area->right - area->left) * area->width, high = (area->top - area->bottom) * area->height;
  int placed = 0;
  for (int i = 0; i < count; i++) {
    const rf_plot_label *a = &label[i];
    if (!a->placed) continue;
    placed++;
    assert_true(a->left >= 0 && a->left + a->wide <= wide);
    assert_true(a->low >= 0 && a->low + RF_PLOT_LABEL_HIGH <= high);
    for (int k = 0; k < count; k++) {
      const rf_plot_label *b = &label[k];
      double x = part(b->x, area->x0, area->x1, area->log_x) * wide,
             y = part(b->y, area->y0, area->y1, area->log_y) * high;
      assert_true(apart(a->left, a->wide, x - b->radius, 2 * b->radius) ||
                  apart(a->low, RF_PLOT_LABEL_HIGH, y - b->radius, 2 * b->radius));
      if (k != i && b->placed)
        assert_true(apart(a->left, a->wide, b->left, b->wide) ||
                    apart(a->low, RF_PLOT_LABEL_HIGH, b->low, RF_PLOT_LABEL_HIGH));
    }
  }
  return placed;
}

static void labels_of_near_points_move_apart(void **state) {
  (void)state;
  rf_plot_label label[POINTS] = {0};
  for (int i = 0; i < POINTS; i++) {
    label[i] = (rf_plot_label){.x = 40 + 0.4 * i, .y = 25 - 0.3 * i, .radius = 5};
    strcpy(label[i].text, i % 3 ? "remat save_dot_except_mlp" : "f32");
  }
  rf_plot_place(&LINEAR, label, POINTS);
  assert_int_equal(check(&LINEAR, label, POINTS), POINTS);
}

static void logarithmic_axes_are_known(void **state) {
  (void)state;
  rf_plot_area area = LINEAR;
  area.x0 = 1, area.x1 = 1e4, area.y0 = 1e9, area.y1 = 1e15, area.log_x = area.log_y = true;
  rf_plot_label label[3] = {{.x = 1.01, .y = 1.1e9, .radius = 9, .text = "at a corner"},
                            {.x = 9.9e3, .y = 9e14, .radius = 9, .text = "at the other corner"},
                            {.x = 9.8e3, .y = 9e14, .radius = 9, .text = ""}};
  rf_plot_place(&area, label, 3);
  assert_int_equal(check(&area, label, 3), 2);
  assert_false(label[2].placed);
}

static void a_label_without_a_place_is_left_out(void **state) {
  (void)state;
  rf_plot_area area = LINEAR;
  area.width = 60;
  rf_plot_label label[1] = {{.x = 50, .y = 25, .radius = 5, .text = "longer than the whole plot"}};
  rf_plot_place(&area, label, 1);
  assert_false(label[0].placed);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(labels_of_near_points_move_apart),
                                     cmocka_unit_test(logarithmic_axes_are_known),
                                     cmocka_unit_test(a_label_without_a_place_is_left_out)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
